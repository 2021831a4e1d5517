//! What a process was told: a resource as the commands that build it (`docs/spec/config-and-cli.md` 3.4, 5.2).
//!
//! A resource begins with nothing but its name and this host's node id, and each command of drbdsetup changes it, or is
//! refused and changes nothing. The same commands, one a line, are the text of a resource: who reads it follows them.
//! What drbdsetup has no words for goes as private options of `new-resource` and `new-minor`, which begin with `_`.

mod call;
mod objects;
mod options;
mod standing;

use units::{NodeId, VolumeNr};

use crate::command::shell_line;
use crate::model::{LocalConnection, LocalResource, LocalVolume, PeerDevice};
use crate::options::{Handlers, Settings};
use crate::plan::{AdjustScope, Plan, Step};
use crate::table::Group;
use call::Call;
pub use objects::check_name;
pub use standing::{Standing, behind_file};

/// The first line of the text; what has another one is of another release.
const HEAD: &str = "# urbd: what was told, 1";
/// Private options of `new-resource`, by the group that they stand for.
const PRIVATE: [(&str, Group); 3] =
    [("_urbd-", Group::Urbd), ("_resync-goal-", Group::ResyncGoal), ("_handlers-", Group::Handlers)];

/// Why a command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kernel's status (`docs/spec/config-and-cli.md`, appendix A), over 100.
    pub code: i32,
    /// What is wrong.
    pub text: String,
}

impl Refused {
    /// "Configuration request not possible": what has no status of its own.
    const INVALID: i32 = 162;

    fn new(code: i32, text: impl Into<String>) -> Refused {
        Refused { code, text: text.into() }
    }

    fn invalid(text: impl Into<String>) -> Refused {
        Refused::new(Refused::INVALID, text)
    }
}

impl LocalResource {
    /// A resource without volumes and peers. `options` are resource options and urbd's own.
    #[must_use]
    pub fn begin(name: &str, host: &str, node_id: NodeId) -> LocalResource {
        let none = Settings::default();
        let mut new = LocalResource {
            name: name.to_owned(),
            host: host.to_owned(),
            node_id,
            options: (&none).into(),
            startup: (&none).into(),
            handlers: Handlers::default(),
            urbd: (&none).into(),
            resync_goal: (&none).into(),
            volumes: Vec::new(),
            peers: Vec::new(),
            settings: none.clone(),
            private: none,
            host_count: 1,
            metadata_slots: 1,
        };
        new.derive();
        new
    }

    /// Does what one command of drbdsetup says (`words`, without the program's name), or changes nothing. Options have
    /// their whole names, with the value behind a `=`. What the command needs to have happened before (a disk that is
    /// detached, a connection that is StandAlone) is the business of who runs the resource.
    ///
    /// # Errors
    /// What the kernel refuses, with its status.
    pub fn tell(&mut self, words: &[String]) -> Result<(), Refused> {
        let call = Call::read(words)?;
        let mut changed = self.clone();
        changed.follow(&call)?;
        changed.derive();
        *self = changed;
        Ok(())
    }

    fn follow(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        match call.command {
            "new-minor" => self.new_minor(call),
            "del-minor" => self.del_minor(call),
            "attach" => self.attach(call),
            "detach" => self.detach(call),
            "new-peer" => self.new_peer(call),
            "del-peer" => self.del_peer(call),
            "new-path" => self.new_path(call),
            "del-path" => self.del_path(call),
            "resource-options" => self.resource_options(call),
            "disk-options" | "resize" => self.disk_options(call),
            "net-options" => self.net_options(call),
            "peer-device-options" => self.peer_device_options(call),
            "rename-resource" => self.rename_resource(call),
            other => Err(Refused::new(137, format!("`{other}` builds nothing"))),
        }
    }

    /// Would the commands that make it make `other`?
    #[must_use]
    pub fn is_same(&self, other: &LocalResource) -> bool {
        let volumes = |of: &LocalResource| -> Vec<_> {
            let one = |v: &LocalVolume| {
                let place = (v.nr, v.minor, v.name.clone(), v.implicit, v.backing.clone());
                (place, v.disk.clone(), v.device.clone())
            };
            of.volumes.iter().map(one).collect()
        };
        let peers = |of: &LocalResource| -> Vec<_> {
            let devices = |p: &LocalConnection| -> Vec<_> {
                p.peer_devices.iter().map(|d| (d.volume, d.options.clone())).collect()
            };
            let one =
                |p: &LocalConnection| (p.peer_node_id, p.peer_name.clone(), p.paths.clone(), p.net.clone(), devices(p));
            let mut all: Vec<_> = of.peers.iter().map(one).collect();
            all.sort_by_key(|(id, ..)| *id);
            all
        };
        let own = |of: &LocalResource| (of.name.clone(), of.host.clone(), of.node_id, of.options.clone());
        let private = |of: &LocalResource| (of.handlers.clone(), of.urbd.clone(), of.resync_goal.clone());
        own(self) == own(other)
            && private(self) == private(other)
            && volumes(self) == volumes(other)
            && peers(self) == peers(other)
    }

    /// The commands that make it: [`LocalResource::from_told`] reads them.
    #[must_use]
    pub fn told(&self) -> String {
        let mut plan = Plan::up(self, &AdjustScope::default());
        plan.steps.retain(|step| !matches!(step, Step::Connect { .. }));
        let lines: Vec<String> = plan.steps.iter().map(|step| shell_line(&self.words(step))).collect();
        format!("{HEAD}\n{}\n", lines.join("\n"))
    }

    /// The words by which a step towards this resource is told, without the program's name.
    #[must_use]
    pub fn words(&self, step: &Step) -> Vec<String> {
        let commands = step.commands(&self.name).into_iter().filter(|words| words[0] == "drbdsetup");
        // Of a `resize` the first; what it is called again with is nothing that is told.
        let mut words: Vec<String> = commands.take(1).flatten().skip(1).collect();
        let after = |word: &String| word.starts_with("--resync-after=");
        if words.iter().any(after) || matches!(step, Step::Attach { .. }) {
            words.retain(|word| !after(word));
            words.extend(self.after_words(step));
        }
        words.extend(self.private_words(step));
        words
    }

    /// The language has names, also for the volumes of other resources; a minor is found by who asks.
    fn after_words(&self, step: &Step) -> Option<String> {
        let (Step::Attach { volume, .. } | Step::DiskOptions { volume, .. }) = step else { return None };
        let after = self.volume(*volume)?.disk.resync_after.as_ref()?;
        Some(format!("--resync-after={after}"))
    }

    /// The resource that these commands make.
    ///
    /// # Errors
    /// The text has another form, or a command is refused.
    pub fn from_told(text: &str) -> Result<LocalResource, Refused> {
        let lines = text.strip_prefix(HEAD).ok_or_else(|| {
            let first = text.lines().next().unwrap_or_default();
            Refused::invalid(format!("what was told has another form, of another release: {first}"))
        })?;
        let mut commands = call::lines(lines).into_iter();
        let first = commands.next().unwrap_or_default();
        let mut new = LocalResource::new_resource(&first)?;
        for words in commands {
            new.tell(&words)?;
        }
        Ok(new)
    }

    /// `new-resource RES NODE-ID`, with its options.
    ///
    /// # Errors
    /// It is no such command; a name or an option is not possible (162).
    pub fn new_resource(words: &[String]) -> Result<LocalResource, Refused> {
        let call = Call::read(words)?;
        let [name, id] = call.arguments[..] else {
            return Err(Refused::invalid(format!("`{}` is no new-resource RES NODE-ID", words.join(" "))));
        };
        if call.command != "new-resource" {
            return Err(Refused::invalid(format!("`{}` comes before new-resource", call.command)));
        }
        let node_id = call::node_id(id)?;
        let mut new = LocalResource::begin(name, call.value("_host").unwrap_or_default(), node_id);
        for (name, value) in &call.options {
            let private = PRIVATE.iter().find_map(|(head, group)| Some((*group, name.strip_prefix(head)?)));
            let (into, (group, name)) = match private {
                Some(private) => (&mut new.private, private),
                None if *name == "_host" => continue,
                None => (&mut new.settings, (Group::Resource, *name)),
            };
            into.put(call::setting(&[group], name, *value)?);
        }
        new.derive();
        Ok(new)
    }

    /// What drbdsetup has no words for.
    fn private_words(&self, step: &Step) -> Vec<String> {
        match step {
            Step::NewResource { .. } => {
                let host = format!("--_host={}", self.host);
                let own = PRIVATE.iter().flat_map(|(head, group)| {
                    let of = self.private.of(*group);
                    of.iter().map(|s| format!("--{head}{}={}", s.spec.name, s.text)).collect::<Vec<_>>()
                });
                std::iter::once(host).chain(own).collect()
            }
            Step::NewMinor { volume, .. } => {
                let Some(volume) = self.volume(*volume) else { return Vec::new() };
                let name = volume.name.iter().map(|name| format!("--_name={name}"));
                name.chain(volume.implicit.then(|| "--_implicit".to_owned())).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn volume(&self, nr: VolumeNr) -> Option<&LocalVolume> {
        self.volumes.iter().find(|v| v.nr == nr)
    }

    /// Makes what is computed agree with what was set.
    fn derive(&mut self) {
        self.options = (&self.settings).into();
        self.handlers = (&self.private).into();
        self.urbd = (&self.private).into();
        self.resync_goal = (&self.private).into();
        self.host_count = self.peers.len() + 1;
        self.metadata_slots = u32::try_from(self.peers.len().max(1)).expect("at most 32 nodes");
        self.volumes.sort_by_key(|v| v.nr);
        let minors: Vec<(VolumeNr, u32)> = self.volumes.iter().map(|v| (v.nr, v.minor)).collect();
        for volume in &mut self.volumes {
            volume.disk = (&volume.settings).into();
            volume.device = (&volume.settings).into();
            let before = volume.disk.resync_after.as_deref().and_then(crate::model::volume_name);
            let own = before.filter(|(name, _)| *name == self.name);
            let minor = own.and_then(|(_, nr)| minors.iter().find(|(other, _)| nr.is_none_or(|nr| nr == *other)));
            volume.resync_after_minor = minor.map(|(_, minor)| *minor);
        }
        for peer in &mut self.peers {
            peer.net = (&peer.settings).into();
            let known = std::mem::take(&mut peer.peer_devices);
            peer.peer_devices = minors
                .iter()
                .map(|(nr, _)| {
                    let settings = known.iter().find(|d| d.volume == *nr).map(|d| d.settings.clone());
                    let settings = settings.unwrap_or_default();
                    PeerDevice { volume: *nr, options: (&settings).into(), settings }
                })
                .collect();
        }
    }
}

impl LocalConnection {
    fn new(peer_node_id: NodeId, peer_name: &str, settings: Settings) -> LocalConnection {
        LocalConnection {
            peer_node_id,
            peer_name: peer_name.to_owned(),
            paths: Vec::new(),
            net: (&settings).into(),
            peer_devices: Vec::new(),
            settings,
            span: crate::error::Span::outside(),
        }
    }
}
