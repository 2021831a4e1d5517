//! Steps as commands of drbdsetup and drbdmeta, as a dry run prints them (`docs/spec/config-and-cli.md` 5.2, 3.4).

use crate::backing::{Backing, MetaDisk};
use crate::model::LocalPath;
use crate::options::Settings;
use crate::plan::Step;
use units::NodeId;

impl Step {
    /// The commands that do this, program name first (in the dialect of drbd-utils 9.24 and later).
    #[must_use]
    pub fn commands(&self, resource: &str) -> Vec<Vec<String>> {
        let id = |node: NodeId| node.index().to_string();
        let reset = "--set-defaults";
        let one = match self {
            Step::NewResource { node_id, options } => line(&["new-resource", resource, &id(*node_id)], options),
            Step::ResourceOptions { options } => line(&["resource-options", resource, reset], options),
            Step::Detach { minor, .. } => plain(&["detach", "--diskless", &minor.to_string()]),
            Step::DelMinor { minor, .. } => plain(&["del-minor", &minor.to_string()]),
            Step::NewMinor { volume, minor, diskless, options } => {
                let (minor, volume) = (minor.to_string(), volume.0.to_string());
                let head = ["new-minor", resource, &minor, &volume, "--diskless"];
                line(if *diskless { &head } else { &head[..4] }, options)
            }
            Step::Disconnect { peer } => plain(&["disconnect", resource, &id(*peer)]),
            Step::DelPeer { peer } => plain(&["del-peer", resource, &id(*peer)]),
            Step::DelPath { peer, path } => path_command("del-path", resource, &id(*peer), path),
            Step::NewPeer { peer, options, .. } => line(&["new-peer", resource, &id(*peer)], options),
            Step::NewPath { peer, path } => path_command("new-path", resource, &id(*peer), path),
            Step::NetOptions { peer, options } => line(&["net-options", resource, &id(*peer), reset], options),
            Step::PeerDeviceOptions { peer, volume, options, reset: with_reset } => {
                let (peer, volume) = (id(*peer), volume.0.to_string());
                let head = ["peer-device-options", resource, &peer, &volume, reset];
                line(if *with_reset { &head } else { &head[..4] }, options)
            }
            Step::Attach { minor, backing, options, .. } => return attach(*minor, backing, options),
            Step::DiskOptions { minor, options, .. } => line(&["disk-options", &minor.to_string(), reset], options),
            Step::Resize { minor, size, .. } => {
                let mut words = plain(&["resize", &minor.to_string()]);
                words.push(format!("--size={}", size.as_ref().map_or("0", |s| s.text.as_str())));
                return vec![words, plain(&["check-resize", &minor.to_string()])];
            }
            Step::Connect { peer, discard_my_data, tentative } => {
                let mut words = plain(&["connect", resource, &id(*peer)]);
                words.extend(discard_my_data.then(|| "--discard-my-data".to_owned()));
                words.extend(tentative.then(|| "--tentative".to_owned()));
                words
            }
        };
        vec![one]
    }
}

/// A command as one line for a shell.
#[must_use]
pub fn shell_line(command: &[String]) -> String {
    command.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

fn shell_word(word: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "-_=:./,+@%".contains(c);
    let escaped = |c: char| if bare(c) { vec![c] } else { vec!['\\', c] };
    word.chars().flat_map(escaped).collect()
}

fn plain(words: &[&str]) -> Vec<String> {
    std::iter::once("drbdsetup").chain(words.iter().copied()).map(str::to_owned).collect()
}

fn line(words: &[&str], options: &Settings) -> Vec<String> {
    let options = options.iter().map(|s| format!("--{}={}", s.spec.name, s.text));
    plain(words).into_iter().chain(options).collect()
}

fn path_command(command: &str, resource: &str, peer: &str, path: &LocalPath) -> Vec<String> {
    plain(&[command, resource, peer, &path.local.argument(), &path.remote.argument()])
}

fn attach(minor: u32, backing: &Backing, options: &Settings) -> Vec<Vec<String>> {
    let minor = minor.to_string();
    let (device, index) = match &backing.meta_disk {
        MetaDisk::Internal => (&backing.path, "internal".to_owned()),
        MetaDisk::External { path } => (path, "flexible".to_owned()),
        MetaDisk::Indexed { path, index } => (path, index.to_string()),
    };
    let meta_index = if index == "flexible" { "flex-external" } else { &index };
    let meta = |verb: &str| ["drbdmeta", &minor, "v09", device, meta_index, verb].map(str::to_owned).to_vec();
    vec![meta("repair-md"), meta("apply-al"), line(&["attach", &minor, &backing.path, device, &index], options)]
}
