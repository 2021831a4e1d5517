//! The handler names as verbs: runs the configured command, for scripts that call it themselves
//! (`docs/spec/config-and-cli.md` 6).

use std::env;
use std::ffi::OsString;
use std::process::Command;

use config::{LocalResource, shell_line};

use crate::cli::Call;
use crate::objects::Target;
use crate::problem::{Problem, exit};

macro_rules! handlers {
    ($($function:ident = $name:literal,)+) => {
        $(pub(crate) fn $function(call: &Call, target: &Target) -> Result<u8, Problem> {
            run($name, call, target)
        })+

        /// Is this the name of a handler?
        pub(crate) fn is_one(verb: &str) -> bool {
            [$($name),+].contains(&verb)
        }
    };
}

handlers! {
    pri_on_incon_degr = "pri-on-incon-degr",
    pri_lost_after_sb = "pri-lost-after-sb",
    pri_lost = "pri-lost",
    local_io_error = "local-io-error",
    initial_split_brain = "initial-split-brain",
    split_brain = "split-brain",
    out_of_sync = "out-of-sync",
    quorum_lost = "quorum-lost",
    disconnected = "disconnected",
    before_resync_target = "before-resync-target",
    before_resync_source = "before-resync-source",
    after_resync_target = "after-resync-target",
    fence_peer = "fence-peer",
    unfence_peer = "unfence-peer",
}

/// What a dry run prints; nothing if none is configured.
pub(crate) fn line(event: &str, local: &LocalResource) -> Option<String> {
    let script = local.handlers.command(event)?;
    Some(shell_line(&["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()]))
}

/// Where drbdadm finds programs beside those that the kernel does.
const MORE_PATHS: &str = "/usr/local/sbin:/usr/local/bin:/lib/drbd";

/// The exit status is that of the command; 0 if none is configured, or if no file has the resource, which runs all the
/// same. What the configuration says is added to the environment, which else is passed on: that of a process that has
/// called this says more of the event.
fn run(event: &str, call: &Call, target: &Target) -> Result<u8, Problem> {
    if target.local.is_none() && call.context.is_in_no_file(&target.name.resource) {
        return Ok(0);
    }
    let local = target.local()?;
    let Some(script) = local.handlers.command(event) else { return Ok(0) };
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).envs(environment(call, target, local));
    let status = command
        .status()
        .map_err(|e| Problem::new(exit::BROKEN, format!("{target}: the {event} handler cannot be started: {e}")))?;
    // A handler that was killed has failed, whatever it wanted to say.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::USAGE))
}

/// `docs/spec/config-and-cli.md` 6.1: what drbdadm adds, and what the kernel would have said to who calls this by hand.
fn environment(call: &Call, target: &Target, local: &LocalResource) -> Vec<(String, OsString)> {
    let said = |name: &str| env::var(name).ok();
    let join = |values: Vec<String>| OsString::from(values.join(" "));
    let volume = said("DRBD_VOLUME").and_then(|nr| nr.parse().ok()).or(target.name.volume);
    let volumes = || target.volumes().filter(|v| volume.is_none_or(|nr| v.nr.0 == nr));
    let disks = || join(volumes().filter_map(|v| Some(v.backing.as_ref()?.path.clone())).collect());
    let peer = said("DRBD_PEER_NODE_ID");
    let peers = target.peers().filter(|p| peer.as_ref().is_none_or(|id| *id == p.peer_node_id.to_string()));
    let peers = join(peers.map(|p| p.peer_name.clone()).collect());
    let path = said("PATH").map_or_else(|| MORE_PATHS.to_owned(), |path| format!("{path}:{MORE_PATHS}"));
    let always = [
        ("PATH", path.into()),
        ("DRBD_RESOURCE", local.name.clone().into()),
        ("DRBD_CONF", call.context.config_file.clone().into()),
        ("DRBD_DONT_WARN_ON_VERSION_MISMATCH", "1".into()),
        ("DRBD_MY_NODE_ID", local.node_id.to_string().into()),
        ("DRBD_LL_DISK", disks()),
        ("DRBD_PEER", peers.clone()),
        ("DRBD_PEERS", peers),
    ];
    let unsaid = [
        ("DRBD_MINOR", Some(join(volumes().map(|v| v.minor.to_string()).collect()))),
        ("DRBD_BACKING_DEV", Some(disks())),
        ("DRBD_VOLUME", volume.map(|nr| nr.to_string().into())),
    ];
    let unsaid = unsaid.into_iter().filter(|(name, _)| said(name).is_none());
    let nodes = local.peers.iter().map(|p| (p.peer_node_id, &p.peer_name)).chain([(local.node_id, &local.host)]);
    let nodes = nodes.map(|(id, name)| (format!("DRBD_NODE_ID_{id}"), name.into()));
    let all = always.into_iter().chain(unsaid.filter_map(|(name, value)| Some((name, value?))));
    all.map(|(name, value)| (name.to_owned(), value)).chain(nodes).collect()
}
