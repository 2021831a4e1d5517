//! The table of verbs: names, help, objects and options as data; used for parsing, dispatch, help and completion.

pub(crate) mod absent;
pub(crate) mod adjust;
mod at_shutdown;
mod background;
pub(crate) mod commands;
pub(crate) mod completion;
pub(crate) mod configuration;
pub(crate) mod drbdmeta;
pub(crate) mod drbdsetup;
pub(crate) mod dry_run;
pub(crate) mod gi;
pub(crate) mod handlers;
pub(crate) mod inspect;
pub(crate) mod lifecycle;
pub(crate) mod metadata;
pub(crate) mod objects;
pub(crate) mod options;
pub(crate) mod programs;
pub(crate) mod setup;
pub(crate) mod shell;
pub(crate) mod show;
mod stand_in;
pub(crate) mod status;
pub(crate) mod superblock;
pub(crate) mod told;
pub(crate) mod wait;

use config::Group;

use crate::cli::Call;
use crate::objects::{Takes, Target};
use crate::problem::Problem;

/// What a verb does; the number is the exit status. A dry run does only the first two; of the others it prints the
/// lines of [`dry_run`], or says that there are none.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Looks, once for the whole command line.
    Look(fn(&Call) -> Result<u8, Problem>),
    /// Looks at one object after the other.
    LookAt(fn(&Call, &Target) -> Result<u8, Problem>),
    /// Changes something, once for the whole command line.
    Once(fn(&Call) -> Result<u8, Problem>),
    /// Changes one object after the other.
    Each(fn(&Call, &Target) -> Result<u8, Problem>),
    /// Changes several objects at a time: it mostly waits. What goes wrong is told in their order.
    SideBySide(fn(&Call, &Target) -> Result<u8, Problem>),
}

/// One verb.
pub(crate) struct Verb {
    /// Its name.
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Which objects it takes.
    pub(crate) takes: Takes,
    /// Its options.
    pub(crate) options: &'static [Opt],
    /// Configuration options that it takes on its command line.
    pub(crate) settings: &'static [Group],
    /// Not shown in help.
    pub(crate) hidden: bool,
    /// What it does.
    pub(crate) action: Action,
}

/// One option of a verb.
#[derive(Clone, Copy)]
pub(crate) struct Opt {
    /// Long name, without dashes.
    pub(crate) name: &'static str,
    /// Short name.
    pub(crate) short: Option<char>,
    /// Name of its value; `None` for a flag.
    pub(crate) value: Option<&'static str>,
    /// An argument instead of an option.
    pub(crate) positional: bool,
    /// Not shown in help.
    pub(crate) hidden: bool,
    /// One line of help.
    pub(crate) help: &'static str,
}

const fn flag(name: &'static str, help: &'static str) -> Opt {
    Opt { name, short: None, value: None, positional: false, hidden: false, help }
}

const fn short_flag(name: &'static str, short: char, help: &'static str) -> Opt {
    Opt { short: Some(short), ..flag(name, help) }
}

const fn value(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt { value: Some(value), ..flag(name, help) }
}

const fn positional(name: &'static str, value_name: &'static str, help: &'static str) -> Opt {
    Opt { positional: true, ..value(name, value_name, help) }
}

const fn each(
    name: &'static str,
    takes: Takes,
    help: &'static str,
    options: &'static [Opt],
    action: fn(&Call, &Target) -> Result<u8, Problem>,
) -> Verb {
    Verb { name, help, takes, options, settings: &[], hidden: false, action: Action::Each(action) }
}

const fn once(
    name: &'static str,
    takes: Takes,
    help: &'static str,
    options: &'static [Opt],
    action: fn(&Call) -> Result<u8, Problem>,
) -> Verb {
    Verb { name, help, takes, options, settings: &[], hidden: false, action: Action::Once(action) }
}

/// A verb for several objects at a time.
const fn side_by_side(verb: Verb) -> Verb {
    let action = match verb.action {
        Action::Each(act) => Action::SideBySide(act),
        other => other,
    };
    Verb { action, ..verb }
}

/// A verb that only looks: a dry run of it is the verb.
const fn look(verb: Verb) -> Verb {
    let action = match verb.action {
        Action::Once(act) | Action::Look(act) => Action::Look(act),
        Action::Each(act) | Action::LookAt(act) | Action::SideBySide(act) => Action::LookAt(act),
    };
    Verb { action, ..verb }
}

const fn setting(settings: &'static [Group], verb: Verb) -> Verb {
    Verb { settings, ..verb }
}

const fn hidden(verb: Verb) -> Verb {
    Verb { hidden: true, ..verb }
}

const FORCE: Opt = flag("force", "Do it although it may lose data; answers questions with yes");
const DISCARD: Opt = flag("discard-my-data", "In a split brain, this node's changes are thrown away");
const RESET_BITMAP: Opt = value(
    "reset-bitmap",
    "yes|no",
    "no: only what is marked as different is replaced (DRBD 9's dialect); default: yes",
);
const SOURCE: Opt =
    value("sync-from-peer-node-id", "N", "The peer whose copy is taken; default: the Primary's, else a good one");
const NODE_ID: Opt = value("node-id", "N", "Node id of the peer (v09 metadata)");
const FORMAT: Opt = value("format", "v08|v09", "Metadata format; default: v08 for two hosts without node-id, else v09");
const WAITING: &[Opt] = &[
    Opt { short: Some('t'), ..value("wfc-timeout", "SECONDS", "How long to wait; 0 is for ever") },
    value("degr-wfc-timeout", "SECONDS", "The same if this node was degraded"),
    Opt { short: Some('o'), ..value("outdated-wfc-timeout", "SECONDS", "The same if the data is outdated") },
    Opt { short: Some('w'), ..flag("wait-after-sb", "Go on waiting after a split brain") },
];
const CREATE_MD: &[Opt] = &[
    FORCE,
    FORMAT,
    value("max-peers", "N", "Number of peers with a bitmap, 1 to 31 (v09)"),
    value("peer-max-bio-size", "BYTES", "Largest request of the peer to start with"),
    value("al-stripes", "N", "Stripes of the activity log"),
    value("al-stripe-size-kB", "KIB", "Size of one stripe of the activity log"),
    value("bitmap-block-size", "BYTES", "Data bytes per bitmap bit (v09)"),
    value("effective-size", "SECTORS", "Last agreed size to start with"),
    value("initial-current-uuid", "HEX", "Data generation to start with (v09)"),
    flag("consistent", "Declare the data consistent (v09)"),
    flag("uptodate", "Declare the data up to date (v09)"),
    flag("peers-outdated", "Declare the peers' data outdated (v09)"),
    flag("rotate-uuids", "Begin with an older generation that all peers are declared to have had (v09)"),
    flag("ignore-sanity-checks", "Write even over a file system"),
];
const DUMP_SUPERBLOCK: &[Opt] =
    &[value("output-format", "FORM", "hex, json, bin, or auto: hex on a terminal, else bin; default: hex")];
const INSPECT: &[Opt] = &[
    short_flag("json", 'j', "As JSON"),
    value(
        "meta",
        "PLACE",
        "Where the metadata are: internal, flexible, or the number of a slot; default: where they are found",
    ),
    value("resource", "RES", "What the resource is called in the commands that are suggested"),
];
const REPAIR: &[Opt] = &[flag("tentative", "Print what would be done, do nothing")];
const RUN: &[Opt] = &[
    value(
        "wait-for-disks",
        "SECONDS",
        "How long to wait for disks that are not there, as at boot; default: not at all",
    ),
    Opt { hidden: true, ..flag("take-over", "Go on where the process that runs it leaves") },
    Opt { hidden: true, ..flag("without-disks", "Leave the disks detached until they are attached") },
    Opt { hidden: true, ..flag("told", "Be what standard input says, whatever is configured") },
    Opt { hidden: true, ..value("log", "FILE", "Standard error is this file: it is rotated") },
];
const DOWN: &[Opt] = &[
    FORCE,
    Opt { hidden: true, ..flag("at-shutdown", "If this machine goes down: unmount what is mounted from the devices") },
];
const ADJUST: &[Opt] = &[
    flag("skip-disk", "Leave disks alone; what does not run is started without them"),
    flag("skip-net", "Leave connections alone"),
    DISCARD,
    flag("tentative", "Print what would be done, do nothing"),
];
const SHOW: &[Opt] = &[
    short_flag("json", 'j', "As JSON, in the layout of drbdsetup show --json, always with defaults"),
    short_flag("show-defaults", 'D', "Options that have their defaults, too"),
];
const WHAT_IF_HELP: &str = "Say what stops when a node, a link or a disk is lost";
const WHAT_IF: &[Opt] = &[short_flag("json", 'j', "As JSON, by the name of the resource")];
const STATUS: &[Opt] = &[
    short_flag("json", 'j', "As JSON, in the schema of drbdsetup status --json"),
    short_flag("statistics", 's', "With counters"),
    COLOR,
];
const COLOR: Opt = value("color", "auto|always|never", "Colours; auto: on a terminal, unless NO_COLOR is set");
const EVENTS: &[Opt] = &[
    flag("timestamps", "Begin each line with the time"),
    short_flag("statistics", 's', "With counters"),
    flag("now", "Only the present state, then end"),
    flag("poll", "Print changes again for each `n` on standard input"),
    flag("full", "Every field on every line"),
    COLOR,
];
const TOP: &[Opt] = &[flag("once", "One plain picture of the next second, as without a terminal"), COLOR];
const WEB: &[Opt] = &[value("listen", "ADDRESS", "Port, or loopback address and port; default 127.0.0.1:7780")];
const METRICS: &[Opt] = &[flag("fine", "Latencies in twice as many buckets")];
const SUSPEND: &[Opt] = &[
    value("lease", "SECONDS", "I/O goes on by itself after so long"),
    value("bdev-freeze", "no", "File systems on the device are not frozen: this is always so (fsfreeze does it)"),
];
const RESIZE: &[Opt] = &[
    value(
        "size",
        "SIZE",
        "Wanted size in sectors, or with a suffix s, K, M, G, T, until the next adjust; 0: the largest",
    ),
    flag("assume-peer-has-space", "In DRBD 9's dialect: a node that is away has room for it"),
    flag("assume-clean", "The new space is equal on both nodes already"),
];
const VERIFY: &[Opt] = &[
    value("start", "SECTOR", "First sector, or a size with a suffix"),
    value("stop", "SECTOR", "Where to end"),
    flag("repair", "Copy what differs from the Primary (or else from here) when it ends"),
    flag("wait", "Wait until it has ended, and say how much differs"),
];
const OPTIONS: &[Opt] = &[flag("set-defaults", "First reset all of them to their defaults")];
const DISK_HELP: &str = "Change options of disks and their resync until the next adjust; none given: as configured";
const NET_HELP: &str = "Change options of connections until the next adjust; none given: as configured";
const PD_HELP: &str = "Change the speed of resyncs until the next adjust; none given: as configured";
const RESOURCE_HELP: &str = "Change options of the resource until the next adjust; none given: as configured";
const NEW_UUID: &[Opt] = &[
    flag("clear-bitmap", "Declare both nodes equal: skips the initial synchronisation"),
    flag("force-resync", "This node's copy of a new volume is the good one: all of it is copied to the peers"),
];

use Takes::{Disks, Hosts, Nothing, OptionalResource, Peer, PeerDevice, Resource, Volume};

const UP_HELP: &str = "Start resources: attach the disks, connect to the peers";
const RESTART_HELP: &str = "Go on with another process: applications on the device wait";

/// Verbs that belong together, in the order of the help text.
pub(crate) struct Section {
    /// What they have in common.
    pub(crate) title: &'static str,
    /// The verbs.
    pub(crate) verbs: &'static [Verb],
}

/// All verbs, as help shows them.
pub(crate) static SECTIONS: &[Section] = &[
    Section {
        title: "See what is going on",
        verbs: &[
            look(once("status", OptionalResource, "Show the state of running resources", STATUS, status::status)),
            look(each("why", Resource, "Explain why everything is in the state it is in", &[], status::why)),
            look(once("what-if", OptionalResource, WHAT_IF_HELP, WHAT_IF, status::what_if)),
            look(once("events2", OptionalResource, "Print state changes as they happen", EVENTS, status::events)),
            look(once("top", OptionalResource, "Show what all resources do, in the terminal", TOP, programs::watch)),
            look(once("web", OptionalResource, "Show it in a browser, on a loopback address", WEB, programs::watch)),
            look(once("metrics", OptionalResource, "Print counters for Prometheus", METRICS, status::metrics)),
            each("role", Resource, "Print our role", &[], status::role),
            each("cstate", Peer, "Print the state of connections", &[], status::connection_state),
            hidden(each("peer-role", Peer, "Print the role of peers", &[], status::peer_role)),
            each("dstate", Volume, "Print the states of disks", &[], status::disk_state),
            look(once("show", OptionalResource, "Print the running configuration", SHOW, show::show)),
        ],
    },
    Section {
        title: "Start, stop, change roles",
        verbs: &[
            side_by_side(each("up", Resource, UP_HELP, &[], lifecycle::up)),
            side_by_side(each("down", Resource, "Stop resources", DOWN, lifecycle::down)),
            each(
                "adjust",
                PeerDevice,
                "Bring running resources to what the configuration says",
                ADJUST,
                adjust::adjust,
            ),
            hidden(each(
                "adjust-with-progress",
                OptionalResource,
                "As adjust, of all resources (boot scripts)",
                ADJUST,
                adjust::adjust,
            )),
            side_by_side(each("restart", Resource, RESTART_HELP, &[], lifecycle::restart)),
            once("run", Resource, "Run one resource in the foreground", RUN, lifecycle::run),
            hidden(once("keep", Resource, "Hold a resource's devices when no process serves it", &[], lifecycle::keep)),
            each("primary", Resource, "Make this node Primary: the device can be used", &[FORCE], commands::primary),
            each("secondary", Resource, "Make this node Secondary", &[FORCE], commands::secondary),
            each("connect", Peer, "Connect to the peers", &[DISCARD, ADJUST_TENTATIVE], commands::connect),
            each("disconnect", Peer, "Disconnect from the peers", &[FORCE], commands::disconnect),
            each("attach", Volume, "Attach the backing disk", &[], commands::attach),
            each("detach", Volume, "Detach the backing disk", &[FORCE], commands::detach),
            each("suspend-io", Volume, "Freeze application I/O", SUSPEND, commands::suspend_io),
            each("resume-io", Volume, "Let application I/O go on", &[], commands::resume_io),
        ],
    },
    Section {
        title: "One object at a time",
        verbs: &[
            each("new-resource", Resource, "Make a resource without volumes and peers", &[], objects::new_resource),
            each("new-minor", Volume, "Make its devices, without disks", &[], objects::new_minor),
            each("new-peer", Peer, "Make peers known to it, without connecting", &[], objects::new_peer),
            each("new-path", Peer, "Add the configured addresses of peers", &[], objects::new_path),
            each("del-path", Peer, "Remove the configured addresses of peers", &[], objects::del_path),
            each("del-peer", Peer, "Disconnect from peers and remove them", &[FORCE], objects::del_peer),
            each("forget-peer", Peer, "Free the bitmaps of removed peers", &[], objects::forget_peer),
            each("del-minor", Volume, "Remove devices that have no disk", &[], objects::del_minor),
        ],
    },
    Section {
        title: "Wait",
        verbs: &[
            each("wait-connect", PeerDevice, "Wait until connected", WAITING, wait::connect),
            each("wait-sync", PeerDevice, "Wait until synchronised", WAITING, wait::sync),
            hidden(each(
                "wait-con-int",
                OptionalResource,
                "Wait until connected (boot scripts)",
                WAITING,
                wait::connect,
            )),
        ],
    },
    Section {
        title: "Synchronise, verify, resize",
        verbs: &[
            each("verify", PeerDevice, "Compare the data of both nodes", VERIFY, commands::verify),
            each(
                "invalidate",
                Volume,
                "Throw this node's data away and fetch the peer's",
                &[RESET_BITMAP, SOURCE],
                commands::invalidate,
            ),
            each(
                "invalidate-remote",
                PeerDevice,
                "Throw the peer's data away and send ours",
                &[RESET_BITMAP],
                commands::invalidate_remote,
            ),
            each("pause-sync", PeerDevice, "Pause a resync", &[], commands::pause_sync),
            each("resume-sync", PeerDevice, "Go on with a paused resync", &[], commands::resume_sync),
            each("outdate", Volume, "Mark this node's data as outdated", &[], commands::outdate),
            each("new-current-uuid", Volume, "Start a new data generation", NEW_UUID, commands::new_current_uuid),
            each("resize", Volume, "Take over the new size of the backing disk", RESIZE, commands::resize),
        ],
    },
    Section {
        title: "Options until the next adjust",
        verbs: &[
            setting(options::DISK, each("disk-options", Volume, DISK_HELP, OPTIONS, options::disk)),
            setting(options::NET, each("net-options", Peer, NET_HELP, OPTIONS, options::net)),
            setting(
                options::PEER_DEVICE,
                each("peer-device-options", PeerDevice, PD_HELP, OPTIONS, options::peer_device),
            ),
            setting(options::RESOURCE, each("resource-options", Resource, RESOURCE_HELP, OPTIONS, options::resource)),
        ],
    },
    Section {
        title: "Metadata",
        verbs: &[
            each("create-md", Volume, "Write fresh metadata to the backing disk", CREATE_MD, metadata::create),
            each("wipe-md", Volume, "Destroy the metadata", &[FORCE], metadata::wipe),
            each("dump-md", Volume, "Print the metadata as text", &[FORCE], metadata::dump),
            once(
                "restore-md",
                Volume,
                "Write metadata from its text: restore-md RES/VOL FILE",
                RESTORE_MD,
                metadata::restore,
            ),
            each("apply-al", Volume, "Make the metadata clean after a crash", &[], metadata::apply_al),
            each(
                "check-resize",
                Volume,
                "Move the metadata to the end of a disk that has grown",
                &[],
                metadata::check_resize,
            ),
            look(each(
                "dump-superblock",
                Volume,
                "Print the superblock of the metadata",
                DUMP_SUPERBLOCK,
                superblock::dump_each,
            )),
            each(
                "repair-md",
                Volume,
                "Make entries for peers that are not used equal",
                REPAIR,
                superblock::repair_each,
            ),
            look(once(
                "inspect",
                Disks,
                "Explain the metadata of disks or dumps, alone and together",
                INSPECT,
                inspect::run,
            )),
            each("show-gi", PeerDevice, "Explain the data generation identifiers", &[NODE_ID, FORCE], gi::show),
            each("get-gi", PeerDevice, "Print the data generation identifiers", &[NODE_ID, FORCE], gi::get),
            each("set-gi", PeerDevice, "Overwrite the data generation identifiers", SET_GI, gi::set),
        ],
    },
    Section {
        title: "Configuration, and names for scripts",
        verbs: &[
            once("setup", Hosts, "Write a first configuration, and say what to do next", SETUP, setup::setup),
            look(once(
                "dump",
                OptionalResource,
                "Print the configuration as it was understood",
                &[],
                configuration::dump,
            )),
            look(once("dump-xml", OptionalResource, "Print the configuration as XML", &[], configuration::dump_xml)),
            look(once("sh-nop", OptionalResource, "Only check the configuration", &[], shell::nothing)),
            look(once(
                "sh-list-adjustable",
                OptionalResource,
                "Resources that `adjust` would change",
                &[],
                shell::adjustable,
            )),
            look(once("sh-resources", OptionalResource, "Names of all resources of this host", &[], shell::resources)),
            look(each("sh-resource", PeerDevice, "Name of the resource", &[], shell::resource)),
            look(each("sh-list-config-file", Resource, "Configuration file of a resource", &[], shell::config_file)),
            look(each("sh-lr-of", Resource, "Lower resource of a stacked one", &[], shell::lower_resource)),
            look(each("sh-dev", Volume, "Device per volume", &[], shell::device)),
            look(each("sh-minor", Volume, "Minor number per volume", &[], shell::minor)),
            look(each("sh-ll-dev", Volume, "Backing disk per volume", &[], shell::backing)),
            look(each("sh-md-dev", Volume, "Metadata disk per volume", &[], shell::metadata_device)),
            look(each("sh-md-idx", Volume, "Metadata index per volume", &[], shell::metadata_index)),
            look(each("sh-ip", PeerDevice, "Own address of each path", &[], shell::address)),
            hidden(look(once(
                "udev-names",
                Nothing,
                "Names of the device on a file, for our udev rule",
                UDEV,
                shell::udev_names,
            ))),
            look(each("sh-udev", Volume, "Names and links of a device, for udev", &[], shell::udev)),
            look(once(
                "sh-mod-parms",
                OptionalResource,
                "Parameters of the kernel module: none",
                &[],
                shell::module_parameters,
            )),
            look(each("nbd-uri", Volume, "Print the NBD address of volumes", &[], shell::nbd_uri)),
        ],
    },
    Section {
        title: "Handlers",
        verbs: &[
            hidden(each(
                "pri-on-incon-degr",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::pri_on_incon_degr,
            )),
            hidden(each(
                "pri-lost-after-sb",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::pri_lost_after_sb,
            )),
            hidden(each("pri-lost", PeerDevice, "Run the configured handler", &[], handlers::pri_lost)),
            hidden(each("local-io-error", PeerDevice, "Run the configured handler", &[], handlers::local_io_error)),
            hidden(each(
                "initial-split-brain",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::initial_split_brain,
            )),
            hidden(each("split-brain", PeerDevice, "Run the configured handler", &[], handlers::split_brain)),
            hidden(each("out-of-sync", PeerDevice, "Run the configured handler", &[], handlers::out_of_sync)),
            hidden(each("quorum-lost", PeerDevice, "Run the configured handler", &[], handlers::quorum_lost)),
            hidden(each("disconnected", PeerDevice, "Run the configured handler", &[], handlers::disconnected)),
            hidden(each(
                "before-resync-target",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::before_resync_target,
            )),
            hidden(each(
                "before-resync-source",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::before_resync_source,
            )),
            hidden(each(
                "after-resync-target",
                PeerDevice,
                "Run the configured handler",
                &[],
                handlers::after_resync_target,
            )),
            hidden(each("fence-peer", PeerDevice, "Run the configured handler", &[], handlers::fence_peer)),
            hidden(each("unfence-peer", PeerDevice, "Run the configured handler", &[], handlers::unfence_peer)),
        ],
    },
    Section {
        title: "This program",
        verbs: &[
            look(once("completion", Nothing, "Print a completion script", COMPLETION, completion::print)),
            look(once("version", Nothing, "Print version numbers as shell assignments", &[], completion::version)),
        ],
    },
];

const UDEV: &[Opt] = &[value("backing-file", "PATH", "The file below a loop device: RUN_DIR/RES.dev/.VOL-…")];
const SETUP: &[Opt] = &[
    value("port", "N", "TCP port; default: the first from 7789 on that the configuration does not use"),
    value("minor", "N", "Minor number of the device; default: the first that is free"),
    value("output", "FILE", "Where the configuration is written; default: where it is read"),
    flag("keep-data", "The disks may carry data: it is to be mirrored"),
    flag("force", "Add the resource to a configuration that is there already, without a question"),
];
const ADJUST_TENTATIVE: Opt = Opt { hidden: true, ..flag("tentative", "Accepted for compatibility") };
const RESTORE_MD: &[Opt] = &[FORCE, value("file", "FILE", "The text; default: standard input")];
const SET_GI: &[Opt] = &[FORCE, NODE_ID, value("gi", "GI", "As get-gi prints them; empty fields stay")];
const COMPLETION: &[Opt] = &[positional("shell", "bash|zsh|fish", "For which shell")];

/// All verbs.
pub(crate) fn all() -> impl Iterator<Item = &'static Verb> {
    SECTIONS.iter().flat_map(|section| section.verbs)
}

/// The verb of that name.
pub(crate) fn find(name: &str) -> Option<&'static Verb> {
    all().find(|v| v.name == name)
}

/// Does a verb check the configuration, or put it into effect? It says what that warns of; if others said it too, it
/// would come again and again.
pub(crate) fn warns(name: &str) -> bool {
    const WARN: [&str; 8] = ["up", "adjust", "adjust-with-progress", "restart", "run", "create-md", "dump", "sh-nop"];
    WARN.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_verb_has_help() {
        for (i, verb) in all().enumerate() {
            assert!(!verb.help.is_empty() && !verb.help.ends_with('.'), "{}", verb.name);
            assert!(all().skip(i + 1).all(|v| v.name != verb.name), "{} twice", verb.name);
        }
    }
}
