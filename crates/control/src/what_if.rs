//! What a single loss would do: as the process foretells it, in JSON, and in words.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Nothing: how things are.
    Nothing,
    /// A peer's machine or process.
    Node,
    /// The link to a peer.
    Link,
    /// A peer's disk.
    PeerDisk,
    /// This node's disk.
    OwnDisk,
    /// This node.
    ThisNode,
    /// This node leaves in order (`down`).
    Leaves,
    /// A peer leaves in order, or is left (`disconnect`).
    PeerLeaves,
}

/// An answer, as far as the node that is asked can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Yes.
    Yes,
    /// No.
    No,
    /// If the nodes that are left see each other; else not.
    IfTheyMeet,
    /// It cannot know.
    NotKnown,
}

/// What applications get of a Primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Io {
    /// They are served.
    GoesOn,
    /// They wait.
    Freezes,
    /// They get errors.
    Fails,
    /// They read; their writes get errors.
    WritesFail,
}

/// Votes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Votes {
    /// Nodes within reach that count.
    pub in_reach: u32,
    /// Nodes that count.
    pub of: u32,
    /// How many must be within reach.
    pub needed: u32,
    /// Of those within reach, with good data.
    pub up_to_date: u32,
    /// How many must be; 0: none.
    pub up_to_date_needed: u32,
    /// A node without a disk decides a draw.
    pub tie_breaker: bool,
}

/// A node after the loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outlook {
    /// Its name; empty for the node that is asked.
    #[serde(default)]
    pub node: String,
    /// Is it Primary now?
    pub primary: bool,
    /// `None`: quorum is not asked for, or who is within reach is not known.
    pub votes: Option<Votes>,
    /// Has it quorum? Yes, where that is not asked for.
    pub quorum: Answer,
    /// Does it serve its applications, or would it?
    pub serves: Answer,
    /// What its applications get. `None`: it is not Primary, or that is not known.
    pub io: Option<Io>,
    /// Why they wait: `user`, `no-data`, `fencing`, `quorum`.
    #[serde(default)]
    pub frozen: Vec<String>,
    /// Good copies that it reaches, its own among them, at least.
    pub good_at_least: u32,
    /// And at most.
    pub good_at_most: u32,
    /// Is it Primary, or may it be promoted without force?
    pub may_be_primary: Answer,
}

/// What a loss does to a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WhatIf {
    /// What is lost.
    pub loss: Loss,
    /// The peer that it is about, by name.
    pub peer: Option<String>,
    /// The volume.
    pub volume: u16,
    /// The node that is asked. `None`: it is what is lost.
    pub here: Option<Outlook>,
    /// The other nodes that are connected, and live on.
    pub others: Vec<Outlook>,
}

/// The array behind `urbd-what-if`: each with its sentence.
#[must_use]
pub fn json(all: &[WhatIf]) -> Value {
    let of = |what_if: &WhatIf| {
        let mut value = json!(what_if);
        value["text"] = json!(what_if.sentence());
        value
    };
    all.iter().map(of).collect()
}

/// A line for each loss; volumes for which it does the same share one.
#[must_use]
pub fn lines(all: &[WhatIf]) -> String {
    let volumes = all.iter().map(|w| w.volume).max() != all.iter().map(|w| w.volume).min();
    let mut told: Vec<(String, Vec<u16>, String)> = Vec::new();
    for what_if in all {
        let (loss, then) = (what_if.loss(), what_if.then());
        match told.iter_mut().find(|(l, _, t)| *l == loss && *t == then) {
            Some((_, of, _)) => of.push(what_if.volume),
            None => told.push((loss, vec![what_if.volume], then)),
        }
    }
    let numbers = |of: &[u16]| of.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let line = |(loss, of, then): (String, Vec<u16>, String)| match volumes {
        true => format!("{loss} (volume {}): {then}\n", numbers(&of)),
        false => format!("{loss}: {then}\n"),
    };
    told.into_iter().map(line).collect()
}

impl WhatIf {
    /// `node bravo dies: 2 of 3 votes stay, 2 needed: goes on, 2 good copies`.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{}: {}", self.loss(), self.then())
    }

    fn loss(&self) -> String {
        let peer = self.peer.as_deref().unwrap_or("the peer");
        match self.loss {
            Loss::Nothing => "now".to_owned(),
            Loss::Node => format!("node {peer} dies"),
            Loss::Link => format!("link to {peer} is cut"),
            Loss::PeerDisk => format!("{peer}'s disk is lost"),
            Loss::OwnDisk => "this node's disk is lost".to_owned(),
            Loss::ThisNode => "this node dies".to_owned(),
            Loss::Leaves => "this node leaves".to_owned(),
            Loss::PeerLeaves => format!("{peer} leaves"),
        }
    }

    fn then(&self) -> String {
        let here = self.here.iter().map(|here| here.here(self.loss == Loss::Nothing));
        let mut parts: Vec<String> = here.collect();
        // Who is Primary first.
        parts.extend(self.others.iter().filter(|other| other.primary).map(Outlook::of_primary));
        let secondaries = || self.others.iter().filter(|other| !other.primary);
        let able = |answer| {
            let names = secondaries().filter(move |other| other.may_be_primary == answer).map(|other| &*other.node);
            names.collect::<Vec<_>>().join(", ")
        };
        for (answer, words) in [
            (Answer::Yes, "may be promoted: NODES"),
            (Answer::IfTheyMeet, "may be promoted if the nodes that are left see each other: NODES"),
            (Answer::NotKnown, "not known here whether it may be promoted: NODES"),
        ] {
            let names = able(answer);
            if !names.is_empty() {
                parts.push(words.replace("NODES", &names));
            }
        }
        let none = self.here.is_none() && secondaries().all(|other| other.may_be_primary == Answer::No);
        if none && !self.others.iter().any(|other| other.primary) {
            parts.push("nobody that is left may be promoted".to_owned());
        }
        parts.join("; ")
    }

    /// What stops, or may stop.
    #[must_use]
    pub fn stops(&self) -> Option<String> {
        let here = self.here.iter().filter(|here| here.primary && here.serves == Answer::No);
        let here = here.map(|here| format!("applications here: {}", here.what_applications_get()));
        let others = self.others.iter().filter(|o| o.primary && !matches!(o.serves, Answer::Yes | Answer::IfTheyMeet));
        let all: Vec<String> = here.chain(others.map(Outlook::of_primary)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl Votes {
    fn words(&self, now: bool) -> String {
        let Votes { in_reach, of, needed, .. } = self;
        let stay = match (now, *in_reach) {
            (true, _) => "in reach",
            (_, 1) => "stays",
            _ => "stay",
        };
        let word = if *of == 1 { "vote" } else { "votes" };
        let good = match self.up_to_date_needed {
            0 => String::new(),
            wanted => format!(", {} of them UpToDate, {wanted} needed", self.up_to_date),
        };
        let draw = if self.tie_breaker { ", a node without a disk decides the draw" } else { "" };
        format!("{in_reach} of {of} {word} {stay}, {needed} needed{good}{draw}")
    }
}

impl Outlook {
    fn here(&self, now: bool) -> String {
        let votes = self.votes.map(|votes| votes.words(now) + ": ").unwrap_or_default();
        let then = if self.primary { self.what_applications_get() } else { self.of_secondary().to_owned() };
        format!("{votes}{then}, {}", self.copies())
    }

    fn copies(&self) -> String {
        match (self.good_at_least, self.good_at_most) {
            (1, 1) => "1 good copy".to_owned(),
            (0, 0) => "no good copy".to_owned(),
            (least, most) if least == most => format!("{most} good copies"),
            (least, most) => format!("{least} to {most} good copies"),
        }
    }

    fn what_applications_get(&self) -> String {
        let until = |why: &str| match why {
            "quorum" => "enough nodes are back",
            "no-data" => "good data is in reach again",
            "fencing" => "the lost node counts as fenced",
            _ => "somebody lets it go on (resume-io)",
        };
        match (self.io, self.serves) {
            (Some(Io::GoesOn), _) | (None, Answer::Yes) => "goes on".to_owned(),
            (Some(Io::Freezes), _) => {
                let until: Vec<_> = self.frozen.iter().map(|why| until(why)).collect();
                format!("I/O freezes until {}", until.join(" and "))
            }
            (Some(Io::Fails), _) => "I/O fails".to_owned(),
            (Some(Io::WritesFail), _) => "reads go on, writes fail".to_owned(),
            (None, Answer::No) => "I/O stops".to_owned(),
            (None, Answer::IfTheyMeet) => {
                "goes on if the nodes that are left see each other, else I/O stops".to_owned()
            }
            (None, Answer::NotKnown) => "not known here whether it goes on".to_owned(),
        }
    }

    fn of_secondary(&self) -> &'static str {
        match (self.quorum, self.may_be_primary) {
            (_, Answer::Yes) => "may be promoted",
            (Answer::No, _) => "has no quorum, may not be promoted",
            (_, Answer::No) => "may not be promoted",
            (_, Answer::IfTheyMeet) => "may be promoted if the nodes that are left see each other",
            (_, Answer::NotKnown) => "not known here whether it may be promoted",
        }
    }

    fn of_primary(&self) -> String {
        match (self.io, self.serves) {
            (None, Answer::NotKnown) => format!("not known here whether {} goes on", self.node),
            _ => format!("{} (Primary): {}", self.node, self.what_applications_get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(node: &str, primary: bool, serves: Answer, may_be_primary: Answer) -> Outlook {
        Outlook {
            node: node.to_owned(),
            primary,
            votes: None,
            quorum: Answer::Yes,
            serves,
            io: None,
            frozen: Vec::new(),
            good_at_least: 2,
            good_at_most: 2,
            may_be_primary,
        }
    }

    fn dies(here: Outlook, others: Vec<Outlook>, volume: u16) -> WhatIf {
        WhatIf { loss: Loss::Node, peer: Some("bravo".to_owned()), volume, here: Some(here), others }
    }

    #[test]
    fn each_loss_is_a_line_and_alike_volumes_share_it() {
        let votes = Votes { in_reach: 2, of: 3, needed: 2, up_to_date: 2, up_to_date_needed: 0, tie_breaker: false };
        let here = Outlook { votes: Some(votes), ..outlook("", true, Answer::Yes, Answer::Yes) };
        let on = dies(here.clone(), Vec::new(), 0);
        let line = "node bravo dies: 2 of 3 votes stay, 2 needed: goes on, 2 good copies";
        assert_eq!(on.sentence(), line);
        assert_eq!(on.stops(), None);
        assert_eq!(lines(std::slice::from_ref(&on)), format!("{line}\n"));
        let same = lines(&[on.clone(), WhatIf { volume: 1, ..on.clone() }]);
        assert_eq!(same, format!("{}\n", line.replace("dies:", "dies (volume 0, 1):")));
        let frozen = Outlook {
            io: Some(Io::Freezes),
            frozen: vec!["quorum".to_owned()],
            serves: Answer::No,
            votes: Some(Votes { in_reach: 1, ..votes }),
            good_at_least: 1,
            good_at_most: 1,
            ..here
        };
        let frozen = dies(frozen, Vec::new(), 1);
        let text = lines(&[on, frozen.clone()]);
        let wanted = "node bravo dies (volume 1): 1 of 3 votes stays, 2 needed: I/O freezes until enough nodes are back, \
                      1 good copy\n";
        assert!(text.ends_with(wanted), "{text}");
        assert_eq!(frozen.stops().unwrap(), "applications here: I/O freezes until enough nodes are back");
    }

    #[test]
    fn what_cannot_be_known_is_not_said() {
        let others = vec![
            outlook("charlie", true, Answer::NotKnown, Answer::Yes),
            outlook("delta", false, Answer::Yes, Answer::IfTheyMeet),
            outlook("echo", false, Answer::Yes, Answer::NotKnown),
        ];
        let what_if = dies(outlook("", false, Answer::Yes, Answer::No), others, 0);
        assert_eq!(
            what_if.sentence(),
            "node bravo dies: may not be promoted, 2 good copies; not known here whether charlie goes on; may be promoted \
             if the nodes that are left see each other: delta; not known here whether it may be promoted: echo"
        );
        assert!(what_if.stops().is_some());
        let value = &json(&[what_if])[0];
        assert_eq!(value["others"][1]["may-be-primary"], "if-they-meet");
        assert_eq!((&value["loss"], &value["here"]["good-at-least"]), (&json!("node"), &json!(2)));
    }
}
