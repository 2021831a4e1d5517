//! The objects of a command line: `RES`, `RES/VOL`, `RES:PEER`, `RES:PEER/VOL`, `minor-N`, `all`
//! (`docs/spec/config-and-cli.md` 3.1).

use config::{LocalConnection, LocalResource, LocalVolume};
use control::{ErrorCode, Failure};
use units::{VolumeNr, same_host};

use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::told;

/// Which objects a verb takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// None at all.
    Nothing,
    /// The name of a resource that is not there yet, and its hosts.
    Hosts,
    /// Disks, or files: no objects of a configuration.
    Disks,
    /// Whole resources; none means all.
    OptionalResource,
    /// Whole resources.
    Resource,
    /// Resources or volumes.
    Volume,
    /// Resources or connections.
    Peer,
    /// Resources, volumes, connections or peer devices.
    PeerDevice,
}

impl Takes {
    /// For the usage line.
    pub(crate) const fn usage(self) -> &'static str {
        match self {
            Takes::Nothing => "",
            Takes::Hosts => "RES HOST=ADDRESS[:PORT]:DISK",
            Takes::Disks => "[NAME=]DISK|DUMP",
            Takes::OptionalResource | Takes::Resource => "RES",
            Takes::Volume => "RES[/VOL]",
            Takes::Peer => "RES[:PEER]",
            Takes::PeerDevice => "RES[:PEER][/VOL]",
        }
    }
}

/// One object as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// The resource.
    pub(crate) resource: String,
    /// The peer.
    pub(crate) peer: Option<String>,
    /// The volume.
    pub(crate) volume: Option<u16>,
}

impl Name {
    /// Is it a resource, and no part of one?
    pub(crate) fn is_whole(&self) -> bool {
        self.peer.is_none() && self.volume.is_none()
    }

    /// Takes it apart.
    ///
    /// # Errors
    /// Exit 1: it has not one of the forms, or has parts that the verb does not take.
    pub(crate) fn parse(text: &str, takes: Takes) -> Result<Name, Problem> {
        let (rest, volume) = match text.rsplit_once('/') {
            Some((rest, volume)) => (rest, Some(volume)),
            None => (text, None),
        };
        let (resource, peer) = match rest.split_once(':') {
            Some((resource, peer)) => (resource, Some(peer)),
            None => (rest, None),
        };
        let bad = |why: &str| {
            Problem::usage(format!("'{text}': {why}")).hint(format!("write it as {} or `all`", takes.usage()))
        };
        if resource.is_empty() || peer == Some("") {
            return Err(bad("a name is missing"));
        }
        let volume = volume.map(|v| v.parse().map_err(|_| bad("the volume must be a number"))).transpose()?;
        if volume.is_some() && !matches!(takes, Takes::Volume | Takes::PeerDevice) {
            return Err(bad("this verb acts on whole resources or connections, not on a volume"));
        }
        if peer.is_some() && !matches!(takes, Takes::Peer | Takes::PeerDevice) {
            return Err(bad("this verb acts on resources or volumes, not on a peer"));
        }
        Ok(Name { resource: resource.to_owned(), peer: peer.map(str::to_owned), volume })
    }
}

/// An object with what the configuration says about it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// As it is called in messages.
    pub(crate) name: Name,
    /// The configured resource; `None` if it runs without being configured (any more).
    pub(crate) local: Option<LocalResource>,
    /// The configuration is not valid, or not for this host: it runs all the same.
    pub(crate) invalid: Option<Problem>,
}

impl Target {
    /// Finds the object in the configuration.
    ///
    /// # Errors
    /// Exit 1: unknown resource, volume or peer; exit 10: the configuration is not valid.
    pub(crate) fn find(context: &Context, text: &str, takes: Takes) -> Result<Target, Problem> {
        if let Some(minor) = text.strip_prefix("minor-").and_then(|m| m.parse().ok()) {
            return by_minor(context, minor, takes);
        }
        let name = Name::parse(text, takes)?;
        let local = match context.resource(&name.resource) {
            Ok(local) => local,
            // What does not run the verb has its own words for.
            Err(problem) if context.of_running => return Ok(Target { name, local: None, invalid: Some(problem) }),
            // What runs can be commanded, whatever became of the configuration.
            Err(problem) if context.is_running(&name.resource) => {
                let invalid = match problem.exit {
                    exit::USAGE => renamed(context, &name.resource),
                    _ => Some(problem),
                };
                return Ok(Target { name, local: None, invalid });
            }
            // What has run, and was told what it is, can be gone on with, or ended.
            Err(_) if told::is_left(context, &name.resource) => {
                let invalid = Some(told::left(&name.resource));
                return Ok(Target { name, local: None, invalid });
            }
            Err(problem) if problem.exit == exit::USAGE => return Err(unknown(text, problem)),
            Err(problem) => return Err(problem),
        };
        let target = Target { name, local: Some(local), invalid: None };
        match target.check() {
            // As the kernel says it.
            Err(problem) if context.of_running => {
                let failure = Failure::new(ErrorCode::NO_SUCH_PEER, problem.message);
                Err(Problem { hint: problem.hint, ..Problem::refused(text, &failure) })
            }
            checked => checked.map(|()| target),
        }
    }

    fn check(&self) -> Result<(), Problem> {
        let Some(local) = &self.local else { return Ok(()) };
        if self.name.volume.is_some() && self.volumes().next().is_none() {
            let known: Vec<String> = local.volumes.iter().map(|v| v.nr.0.to_string()).collect();
            let hint = match known.is_empty() {
                true => format!("{} has no volumes", local.name),
                false => format!("{} has: {}", local.name, known.join(" ")),
            };
            return Err(Problem::usage(format!("{self}: no such volume on this host")).hint(hint));
        }
        if let Some(peer) = &self.name.peer
            && self.peers().next().is_none()
        {
            let known: Vec<String> =
                local.peers.iter().map(|p| format!("{} (node id {})", p.peer_name, p.peer_node_id)).collect();
            let why = if same_host(peer, &local.host) || *peer == local.node_id.to_string() {
                "this is the own host"
            } else {
                "no such peer"
            };
            let hint = match known.is_empty() {
                true => format!("{} has no peers: it has no connection", local.name),
                false => format!("{} has the peers: {}", local.name, known.join(", ")),
            };
            return Err(Problem::usage(format!("{self}: {why}")).hint(hint));
        }
        let mut meant = self.name.peer.iter().flat_map(|_| self.peers());
        if let (Some(one), Some(other)) = (meant.next(), meant.next()) {
            let hint = format!("write the name with its domain: {} or {}", one.peer_name, other.peer_name);
            return Err(Problem::usage(format!("{self}: two peers have this name")).hint(hint));
        }
        Ok(())
    }

    /// The configured resource.
    ///
    /// # Errors
    /// Exit 1: it is not in the configuration; exit 10: that is not valid.
    pub(crate) fn local(&self) -> Result<&LocalResource, Problem> {
        self.local.as_ref().ok_or_else(|| {
            let absent = format!("{}: runs, but is not in the configuration", self.name.resource);
            let absent = Problem::usage(absent).hint("put it back, or point --config at the right file");
            self.invalid.clone().unwrap_or(absent)
        })
    }

    /// The configured volumes that it stands for.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = &LocalVolume> {
        let wanted = self.name.volume.map(VolumeNr);
        self.local.iter().flat_map(|l| &l.volumes).filter(move |v| wanted.is_none_or(|nr| v.nr == nr))
    }

    /// The configured connections that it stands for.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &LocalConnection> {
        let all = self.local.as_ref().map_or(&[][..], |l| &l.peers);
        let found = match self.name.peer.as_deref() {
            None => all.iter().collect(),
            Some(name) => named(all, name),
        };
        found.into_iter()
    }

    /// How the control protocol names the peer.
    pub(crate) fn peer(&self) -> Option<String> {
        let wanted = self.name.peer.clone()?;
        Some(self.peers().next().map_or(wanted, |p| p.peer_name.clone()))
    }
}

/// A peer may be named by its host name with or without domain, or as drbdsetup does by its node id. A host may have a
/// number as its name: that goes before.
fn named<'a>(peers: &'a [LocalConnection], name: &str) -> Vec<&'a LocalConnection> {
    let exact: Vec<_> = peers.iter().filter(|p| p.peer_name == name).collect();
    if !exact.is_empty() {
        return exact;
    }
    let by_name: Vec<_> = peers.iter().filter(|p| same_host(&p.peer_name, name)).collect();
    match by_name.is_empty() {
        true => peers.iter().filter(|p| p.peer_node_id.to_string() == name).collect(),
        false => by_name,
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name.resource)?;
        if let Some(peer) = &self.name.peer {
            write!(f, ":{peer}")?;
        }
        if let Some(volume) = self.name.volume {
            write!(f, "/{volume}")?;
        }
        Ok(())
    }
}

/// In the words of drbdadm, which programs match, and in ours.
pub(crate) fn unknown(text: &str, problem: Problem) -> Problem {
    let message = format!("'{text}' not defined in your config (for this host).\n{}", problem.message);
    Problem { message, ..problem }
}

/// What runs is configured, but for hosts of other names than this one's: that was another one when it was started.
fn renamed(context: &Context, resource: &str) -> Option<Problem> {
    context.config().ok()?.resource(resource)?;
    let (before, now) = (told::in_force(context, resource).ok()?.host, &context.node);
    let text = format!("{resource}: runs as host `{before}`, but this host is `{now}`, for which it is not configured");
    Some(Problem::usage(text).hint(format!(
        "nothing was changed; name the host as before (hostnamectl hostname {before}, or --node {before}); or write `on \
         {now}` for `on {before}` in the file on all hosts, then here: urbd restart {resource}; on the others: urbd \
         adjust {resource}"
    )))
}

fn by_minor(context: &Context, minor: u32, takes: Takes) -> Result<Target, Problem> {
    for local in context.own_resources()? {
        if let Some(volume) = local.volumes.iter().find(|v| v.minor == minor) {
            let volume = matches!(takes, Takes::Volume | Takes::PeerDevice).then_some(volume.nr.0);
            let name = Name { resource: local.name.clone(), peer: None, volume };
            return Ok(Target { name, local: Some(local), invalid: None });
        }
    }
    if context.of_running {
        return Err(Problem::refused(&minor.to_string(), &Failure::new(ErrorCode::NO_SUCH_MINOR, "")));
    }
    Err(Problem::usage(format!("minor {minor} belongs to no resource of this host")))
}

/// The targets of a command line; `all` means every resource of this host. What cannot be found is reported and left
/// out: the second value is the greatest exit status of those.
///
/// # Errors
/// The configuration is needed for `all` and is not valid.
pub(crate) fn targets(context: &Context, texts: &[String], takes: Takes) -> Result<(Vec<Target>, u8), Problem> {
    let mut found = Vec::new();
    let mut worst = 0;
    let all = texts.iter().any(|t| t == "all") || (texts.is_empty() && takes == Takes::OptionalResource);
    if all {
        let local = match takes {
            Takes::OptionalResource => context.resources_to_look_at()?,
            _ => context.each_own_resource()?,
        };
        for problem in local.1 {
            problem.report();
            worst = worst.max(problem.exit);
        }
        for local in local.0 {
            let name = Name { resource: local.name.clone(), peer: None, volume: None };
            found.push(Target { name, local: Some(local), invalid: None });
        }
        return Ok((found, worst));
    }
    for text in texts {
        match Target::find(context, text, takes) {
            Ok(target) => found.push(target),
            Err(problem) => {
                problem.report();
                worst = worst.max(problem.exit);
            }
        }
    }
    Ok((found, worst))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_taken_apart() {
        let name = |text| Name::parse(text, Takes::PeerDevice).map(|n| (n.resource, n.peer, n.volume));
        assert_eq!(name("r0"), Ok(("r0".into(), None, None)));
        assert_eq!(name("r0/3"), Ok(("r0".into(), None, Some(3))));
        assert_eq!(name("r0:bravo"), Ok(("r0".into(), Some("bravo".into()), None)));
        assert_eq!(name("r0:ipv4:10.1.1.1:7789/0").unwrap().1.unwrap(), "ipv4:10.1.1.1:7789");
        for bad in ["", "/0", "r0/x", "r0:", ":b", "r0/99999"] {
            assert_eq!(name(bad).unwrap_err().exit, 1, "{bad}");
        }
        assert!(Name::parse("r0/0", Takes::Resource).is_err());
        assert!(Name::parse("r0:b", Takes::Volume).is_err());
    }
}
