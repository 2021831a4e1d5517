//! The handler names as verbs: runs the configured command, for scripts that call it themselves
//! (`docs/spec/config-and-cli.md` 6).

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

/// The exit status is that of the command; 0 if none is configured. What is known of the object is added to the
/// environment, which else is passed on: the caller may have been called with one of its own.
fn run(event: &str, call: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    let Some(script) = local.handlers.command(event) else { return Ok(0) };
    let join = |values: Vec<String>| values.join(" ");
    let minors = join(target.volumes().map(|v| v.minor.to_string()).collect());
    let disks = join(target.volumes().filter_map(|v| Some(v.backing.as_ref()?.path.clone())).collect());
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script);
    command.env("DRBD_RESOURCE", &local.name).env("DRBD_MINOR", minors);
    command.env("DRBD_LL_DISK", &disks).env("DRBD_BACKING_DEV", &disks);
    command.env("DRBD_CONF", &call.context.config_file).env("DRBD_MY_NODE_ID", local.node_id.to_string());
    command.env("DRBD_PEERS", join(target.peers().map(|p| p.peer_name.clone()).collect()));
    if let Some(volume) = target.name.volume {
        command.env("DRBD_VOLUME", volume.to_string());
    }
    for peer in target.peers() {
        command.env(format!("DRBD_NODE_ID_{}", peer.peer_node_id), &peer.peer_name);
    }
    command.env(format!("DRBD_NODE_ID_{}", local.node_id), &local.host);
    let status = command
        .status()
        .map_err(|e| Problem::new(exit::BROKEN, format!("{target}: the {event} handler cannot be started: {e}")))?;
    // A handler that was killed has failed, whatever it wanted to say.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::USAGE))
}
