//! What options of the configuration and verbs are for, for `--help` and for the manual.

use config::{Group, OptionSpec};

/// What the option is for; empty if nobody has said so.
pub(crate) fn option(spec: &OptionSpec) -> &'static str {
    let found = TEXTS.iter().find(|(group, name, _)| *group == spec.group && *name == spec.name);
    found.map_or("", |(_, _, text)| text)
}

/// What a section of the configuration is for.
pub(crate) fn section(group: Group) -> (&'static str, &'static str) {
    match group {
        Group::Global => ("global", "Once in the whole configuration, at its beginning."),
        Group::Resource => ("options", "How a resource behaves as a whole."),
        Group::Net => ("net", "The connection to a peer. In a resource: of all its connections."),
        Group::Disk => ("disk", "A backing disk. In a resource: of all its volumes."),
        Group::Device => ("disk (the device)", "The device of a volume; also written in \"disk\"."),
        Group::PeerDevice => ("disk (towards a peer)", "How fast a volume is synchronised; also written in \"disk\"."),
        Group::Startup => ("startup", "How long the verbs that wait do so."),
        Group::Handlers => ("handlers", "Shell commands that are run when something happens."),
        Group::Proxy => ("proxy", "Of DRBD Proxy, which urbd does not have: read, and refused where it would be used."),
        Group::Urbd => ("urbd", "What only urbd knows. DRBD's own tools refuse this section."),
        Group::ResyncGoal => ("resync-goal", "In \"urbd\": what the adaptive controller of a resync aims at."),
    }
}

/// What an operator should know of a verb beside its line of help.
pub(crate) fn verb(name: &str) -> Option<&'static str> {
    VERBS.iter().find(|(verb, _)| *verb == name).map(|(_, text)| *text)
}

const VERBS: &[(&str, &str)] = &[
    (
        "up",
        "A process is started for each resource; where systemd runs, in a unit of its own. It returns when the disks are attached; the peer may come later. A disk that is not there, or has no metadata, ends it, and nothing runs: it does not wait for disks, as the service does at boot. One that cannot be attached for another reason is said, and the resource runs without it.",
    ),
    (
        "down",
        "It is refused while a device is in use. With --force the I/O of those who use it fails. Stopping what does not run is no error.",
    ),
    (
        "adjust",
        "Compares what runs with the configuration and changes what differs, while the device stays in use. What a process has from its start, as minors and the front end, is refused, and then nothing is changed. With --dry-run it only prints what it would do.",
    ),
    (
        "restart",
        "For a new version of the program: the device stays, and what applications ask of it waits until the next process serves it. Where systemd runs the resource, its service is restarted, unless this version could not go on with the devices: systemctl restart itself does not ask. A process outside of the service serves applications until its next one does. One that has died is followed by another, also of a resource that drbdsetup has made and no file has: that one is what the last one was told. Else it is what the file says.",
    ),
    (
        "what-if",
        "First how things are, then a line for the death of each node that is connected, a cut of its link, and the loss of each disk: how many votes stay and how many are needed, whether applications go on, wait or get errors, how many good copies are left, who may be promoted. The running process asks the rules by which it would decide. Of other nodes it knows what they have told it, and not whether they see each other: where that matters it says so, and what it cannot know it calls not known. Handlers (fence-peer) are not called for it.",
    ),
    (
        "primary",
        "The device can be used on a Primary only. --force declares the data of this node to be good although it is not known to be; it is needed once in the life of a resource, and when the node with better data is lost for good.",
    ),
    ("secondary", "It is refused while a device is in use: unmount first."),
    (
        "connect",
        "After a split brain, --discard-my-data on the node whose changes are to be thrown away, and plain connect on the other one.",
    ),
    ("disconnect", "Refused where it would leave a Primary without good data; --force does it all the same."),
    (
        "create-md",
        "Everything on the disk that is not a file system it knows is overwritten at its end, where the metadata is put; a file system must leave room for it. It asks before it writes over metadata or data.",
    ),
    ("wipe-md", "Without its metadata the disk is no replica any more. The data stays."),
    (
        "inspect",
        "For disks of DRBD or of urbd, when nothing runs or nobody knows what to do. Nothing is written, the disk may be in use, and no configuration is read. Metadata of both formats are looked for at the end of a disk, at its beginning, and in its slots. Each disk is explained, each two are compared by the rules that nodes compare by when they connect, and what can be done is said, with the commands and what each loses. Exit status 20: it cannot be opened; 10: the disk fails, or a dump is cut off; 255: there are no valid metadata; of several the largest.",
    ),
    (
        "invalidate",
        "All of the volume is fetched from the Primary, else from a peer with a good copy, or from the one that --sync-from-peer-node-id names. Until then the data here must not be used. With --reset-bitmap=no only what is marked as different, as after a verify, which a peer can do that speaks DRBD 9's dialect from protocol version 120 on.",
    ),
    (
        "invalidate-remote",
        "All of the volume is sent to the peer. With --reset-bitmap=no only what is marked as different, as with invalidate.",
    ),
    (
        "verify",
        "Compares with the peer that is named, else with each that is connected. Differences are counted and marked; disconnect and connect copies them (in DRBD 9's dialect, invalidate --reset-bitmap=no), or --repair does. It returns when the verify has begun; with --wait when it has ended, with progress on standard error, and then exit status 4 says that something differs (and was not repaired). Beside a Primary only a copy and that Primary's can be compared.",
    ),
    (
        "new-current-uuid",
        "With --clear-bitmap, of new volumes on connected nodes: they count as equal, and nothing is copied. With --force-resync this node's copy of a new volume counts as good, and all of it is copied to the peers; no node need be Primary. Without options on a node that is connected to none.",
    ),
    (
        "resize",
        "After the disks of both nodes have grown: the device grows while it is in use. Shrinking needs --size and loses what is behind it.",
    ),
    (
        "status",
        "Under each resource stands a sentence, with the next command, for everything that is not good; and a line for each resource that is configured and does not run, with the reason; not in JSON, and not under the names of DRBD's tools. Exit status 0 also if nothing runs, 10 if a resource that is named does not, 20 if this user may not look.",
    ),
    (
        "why",
        "For every state that is not good: the reason, and what to do next. Then the decisions that led here, with their stable names in brackets.",
    ),
    (
        "top",
        "Keys: up and down select a resource, Enter shows all about it, s sorts by something else, ? shows all keys, q ends. Without a terminal, one plain picture of the next second.",
    ),
    (
        "web",
        "The page changes nothing, and loads nothing from elsewhere. /metrics is for Prometheus. To look from another machine: ssh -L 7780:127.0.0.1:7780 NODE.",
    ),
    ("events2", "Without --now it goes on for ever. Lines are those of drbdsetup."),
    ("disk-options", "They last until the next adjust; to keep them, write them into the configuration."),
    ("net-options", "They last until the next adjust; to keep them, write them into the configuration."),
    ("peer-device-options", "They last until the next adjust; to keep them, write them into the configuration."),
    ("resource-options", "They last until the next adjust; to keep them, write them into the configuration."),
    ("wait-connect", "Exit status 0: connected. 5: the time is over."),
    ("wait-sync", "Exit status 0: synchronised. 5: the time is over."),
    (
        "run",
        "For service managers. It ends with down; SIGTERM ends it unless the device is in use, which then is kept for the next process. The service urbd@RES waits 90 seconds for its disks.",
    ),
    (
        "setup",
        "Without words it asks, on a terminal. The addresses, the disk and the name of this host are looked at first. A configuration that is there is never overwritten: the resource is added at its end after a question, and the file as it was stays beside it.",
    ),
    (
        "suspend-io",
        "Requests wait until resume-io, or for --lease SECONDS. Use it for a moment, as for a snapshot of the backing disk. A mounted file system is not told: run fsfreeze on it first where it must be clean in the snapshot.",
    ),
    ("completion", "In bash: source <(urbd completion bash)."),
];

const TEXTS: &[(Group, &str, &str)] = &[
    (Group::Global, "disable-ip-verification", "Do not look whether addresses belong to this machine"),
    (Group::Global, "minor-count", "For DRBD's module; read, and without effect here"),
    (Group::Global, "dialog-refresh", "For DRBD's boot script; read, and without effect here"),
    (Group::Global, "usage-count", "Read; urbd counts nobody and asks nobody"),
    (Group::Global, "udev-always-use-vnr", "Links to devices have the volume's number, also for a single volume"),
    (Group::Global, "cmd-timeout-short", "How long a quick command may take; 0: for ever"),
    (Group::Global, "cmd-timeout-medium", "How long a command that waits for disks may take; 0: for ever"),
    (Group::Global, "cmd-timeout-long", "How long a command that waits for peers may take; 0: for ever"),
    (Group::Resource, "cpu-mask", "Which processors DRBD's threads may use"),
    (Group::Resource, "on-no-data-accessible", "What I/O gets when no copy of the data can be reached"),
    (Group::Resource, "auto-promote", "Opening the device makes this node Primary"),
    (Group::Resource, "peer-ack-window", "Sectors after which peers are told what all have"),
    (Group::Resource, "peer-ack-delay", "Time after which peers are told what all have"),
    (Group::Resource, "twopc-timeout", "How long a change of the whole cluster may take"),
    (Group::Resource, "twopc-retry-timeout", "Pause before such a change is tried again"),
    (Group::Resource, "auto-promote-timeout", "How long opening a device waits for the promotion"),
    (Group::Resource, "max-io-depth", "Requests in progress before new ones wait"),
    (Group::Resource, "quorum", "How many nodes must be reached before data may be used"),
    (Group::Resource, "on-no-quorum", "What I/O gets without quorum"),
    (Group::Resource, "quorum-minimum-redundancy", "How many nodes with good data must be reached"),
    (Group::Resource, "on-suspended-primary-outdated", "What a frozen Primary does whose data is outdated"),
    (Group::Resource, "drbd8-api-compatibility", "How DRBD 9's module answers tools of 8.4"),
    (Group::Net, "transport", "Which transport is used: tcp"),
    (
        Group::Net,
        "protocol",
        "When a write is done. A: it is on the own disk and sent; B: the peer has it; C: the peer's disk has it",
    ),
    (Group::Net, "timeout", "How long a peer may take to answer before the connection is given up"),
    (Group::Net, "max-epoch-size", "Writes between two barriers"),
    (Group::Net, "connect-int", "Pause between two attempts to connect"),
    (Group::Net, "ping-int", "After so much silence the peer is asked whether it is alive"),
    (Group::Net, "sndbuf-size", "Send buffer of the sockets; 0: the kernel chooses"),
    (Group::Net, "rcvbuf-size", "Receive buffer of the sockets; 0: the kernel chooses"),
    (Group::Net, "ko-count", "A peer that has not finished a write in so many times \"timeout\" is given up; 0: never"),
    (Group::Net, "allow-two-primaries", "Both nodes may be Primary, for cluster file systems and live migration"),
    (Group::Net, "cram-hmac-alg", "Algorithm with which peers prove that they know the secret"),
    (Group::Net, "shared-secret", "The secret. Who may read the configuration knows it"),
    (Group::Net, "after-sb-0pri", "Split brain with no Primary: whose changes are thrown away"),
    (Group::Net, "after-sb-1pri", "Split brain with one Primary: whose changes are thrown away"),
    (Group::Net, "after-sb-2pri", "Split brain with two Primaries: what is done"),
    (Group::Net, "always-asbp", "Act by these policies also where the histories of both sides differ more"),
    (Group::Net, "rr-conflict", "What is done when roles do not fit the direction of a resync"),
    (Group::Net, "ping-timeout", "How long the answer to a ping may take"),
    (
        Group::Net,
        "data-integrity-alg",
        "Checksum over each block on the wire; costs much, for finding faults of a network",
    ),
    (Group::Net, "tcp-cork", "How DRBD fills TCP's packets"),
    (Group::Net, "on-congestion", "What a Primary with protocol A does when the network is too slow"),
    (Group::Net, "congestion-fill", "Sectors on their way that count as congestion; 0: no limit"),
    (Group::Net, "congestion-extents", "Extents of the activity log in use that count as congestion"),
    (Group::Net, "csums-alg", "Checksum by which a resync finds out what is equal and need not be sent"),
    (Group::Net, "csums-after-crash-only", "Use it only after a Primary has crashed"),
    (Group::Net, "verify-alg", "Checksum by which \"verify\" compares both disks"),
    (Group::Net, "use-rle", "Send bitmaps in their short form"),
    (
        Group::Net,
        "socket-check-timeout",
        "How long a fresh connection waits for the first packet; 0: as long as a ping",
    ),
    (
        Group::Net,
        "fencing",
        "Whether a Primary that loses its peer first has it outdated by the handler \"fence-peer\"",
    ),
    (Group::Net, "max-buffers", "Pages that requests of the peer may hold here"),
    (Group::Net, "unplug-watermark", "When DRBD asks the disk to begin"),
    (Group::Net, "allow-remote-read", "Read from a peer if the own disk cannot"),
    (Group::Net, "load-balance-paths", "Use several paths at the same time"),
    (Group::Net, "rdma-ctrl-rcvbuf-size", "Receive buffer of the RDMA transport"),
    (Group::Net, "rdma-ctrl-sndbuf-size", "Send buffer of the RDMA transport"),
    (Group::Net, "tls", "Encrypt the connection; not supported, and refused"),
    (Group::Net, "tls-keyring", "Keys for TLS"),
    (Group::Net, "tls-privkey", "Private key for TLS"),
    (Group::Net, "tls-certificate", "Certificate for TLS"),
    (Group::Net, "_name", "Name of the peer"),
    (Group::Disk, "size", "Size of the volume, if not all of the disk is to be used; 0: all"),
    (Group::Disk, "max-bio-bvecs", "A limit of old kernels"),
    (Group::Disk, "on-io-error", "What is done when the disk fails"),
    (Group::Disk, "disk-barrier", "Order writes by barriers"),
    (
        Group::Disk,
        "disk-flushes",
        "Order writes by flushing the disk's cache; \"no\" only with a cache that survives a power cut",
    ),
    (Group::Disk, "disk-drain", "Order writes by waiting for those before; \"no\" loses data in a crash"),
    (Group::Disk, "md-flushes", "Flush the cache of the disk that has the metadata"),
    (Group::Disk, "resync-after", "Wait with a resync until that of another volume has ended"),
    (
        Group::Disk,
        "al-extents",
        "Extents of 4 MiB in the activity log: what is resynchronised after a crash, against the cost of random writes",
    ),
    (Group::Disk, "al-updates", "Keep the activity log; without it all is resynchronised after a crash"),
    (Group::Disk, "discard-zeroes-if-aligned", "Trust that discarded blocks of the disk read as zeroes"),
    (Group::Disk, "disable-write-same", "Do not use WRITE SAME"),
    (
        Group::Disk,
        "disk-timeout",
        "A disk that takes longer counts as failed; 0: wait for ever. Too short a time loses disks that only were slow",
    ),
    (Group::Disk, "read-balancing", "Which copy is read"),
    (Group::Disk, "rs-discard-granularity", "A resync discards zeroes in blocks of this size; 0: it writes them"),
    (Group::Disk, "bitmap", "Whether this disk has a bitmap"),
    (Group::Device, "max-bio-size", "Largest request of the device"),
    (Group::Device, "block-size", "Logical block size of the device"),
    (Group::Device, "discard-granularity", "What the device says of the size of discards"),
    (Group::Device, "diskless", "This node has no disk on purpose"),
    (Group::PeerDevice, "resync-rate", "Speed of a resync where no controller decides it"),
    (Group::PeerDevice, "c-plan-ahead", "How far the controller of a resync plans ahead; 0: no controller"),
    (Group::PeerDevice, "c-delay-target", "Delay on the way that the controller aims at"),
    (Group::PeerDevice, "c-fill-target", "Sectors on their way that the controller aims at; 0: aim at a delay"),
    (Group::PeerDevice, "c-max-rate", "No resync is faster than this; 0: no limit"),
    (Group::PeerDevice, "c-min-rate", "A resync may go on at this rate beside applications; 0: they do not slow it"),
    (Group::PeerDevice, "bitmap", "Keep a bitmap for this peer"),
    (Group::PeerDevice, "resync-without-replication", "Resynchronise from a node that is not replicated to"),
    (Group::PeerDevice, "peer-tiebreaker", "A diskless peer counts when nodes are counted"),
    (Group::Startup, "wfc-timeout", "How long to wait for the peer at boot; 0: for ever"),
    (Group::Startup, "degr-wfc-timeout", "The same if the peer was missing before"),
    (Group::Startup, "outdated-wfc-timeout", "The same if the peer's data was outdated"),
    (Group::Startup, "wait-after-sb", "Go on waiting after a split brain"),
    (Group::Startup, "stacked-timeouts", "Stacked resources have times of their own"),
    (Group::Startup, "become-primary-on", "Who becomes Primary at boot"),
    (Group::Handlers, "pri-on-incon-degr", "A Primary has no good data and no peer that has"),
    (Group::Handlers, "pri-lost-after-sb", "A Primary loses its data in a split brain"),
    (Group::Handlers, "pri-lost", "A Primary would have to take over the peer's data"),
    (Group::Handlers, "initial-split-brain", "A split brain is found, before policies act on it"),
    (Group::Handlers, "split-brain", "A split brain remains that no policy has resolved"),
    (Group::Handlers, "fence-peer", "The peer must be made unable to become Primary; its exit status says what it did"),
    (Group::Handlers, "outdate-peer", "Old name of fence-peer"),
    (Group::Handlers, "unfence-peer", "The peer is in order again; undoes what fence-peer did"),
    (Group::Handlers, "local-io-error", "The own disk has failed; with on-io-error call-local-io-error"),
    (Group::Handlers, "before-resync-target", "A resync towards this node is about to begin"),
    (Group::Handlers, "after-resync-target", "A resync towards this node has ended"),
    (Group::Handlers, "before-resync-source", "A resync from this node is about to begin"),
    (Group::Handlers, "out-of-sync", "Verify has found differences"),
    (Group::Handlers, "quorum-lost", "This node has lost quorum"),
    (Group::Handlers, "disconnected", "A connection has ended"),
    (Group::Proxy, "memlimit", "Memory of the proxy"),
    (Group::Proxy, "read-loops", "How often the proxy reads at a time"),
    (Group::Proxy, "compression", "Whether the proxy compresses"),
    (Group::Proxy, "bwlimit", "Bandwidth of the proxy"),
    (Group::Proxy, "sndbuf-size", "Send buffer of the proxy"),
    (Group::Proxy, "rcvbuf-size", "Receive buffer of the proxy"),
    (Group::Proxy, "ping-timeout", "How long the proxy waits for a ping"),
    (Group::Urbd, "front-end", "How applications reach the volumes: a device, an NBD socket, or none"),
    (Group::Urbd, "fuse-io-uring", "Speak with the kernel's FUSE through io_uring"),
    (
        Group::Urbd,
        "hand-over",
        "A process of its own holds the device, and what the process that serves it was told: both outlive that",
    ),
    (
        Group::Urbd,
        "usermode-helper",
        "The program that is called at an event, with the handler's name and the resource's; \"disabled\": none",
    ),
    (
        Group::Urbd,
        "resync-controller",
        "Who decides how fast a resync is: \"adaptive\" yields to applications, the others are DRBD's",
    ),
    (Group::Urbd, "busy-poll", "How long the process looks for work before it sleeps; 0: not at all"),
    (
        Group::Urbd,
        "protocol-version-max",
        "Newest protocol version offered to peers: up to 101 is DRBD 8.4's dialect, 118 to 124 DRBD 9's. Not written: \
         101 for two hosts without `node-id`, else 124",
    ),
    (
        Group::Urbd,
        "status-group",
        "Members of this Unix group may look at the resource, as root may; they may change nothing",
    ),
    (Group::Urbd, "drbd-names", "Names of DRBD's for the devices, but of minors that its kernel module has"),
    (Group::ResyncGoal, "finish-within", "A resync shall have ended after this time; 0: no aim"),
    (Group::ResyncGoal, "latency-budget", "How much slower applications may become during a resync"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_explained_and_nothing_else() {
        for spec in config::options() {
            let text = option(spec);
            assert!(
                !text.is_empty() && !text.ends_with('.'),
                "{:?} {}: say here what it is for",
                spec.group,
                spec.name
            );
        }
        for (name, text) in VERBS {
            assert!(crate::verbs::find(name).is_some() && text.ends_with('.'), "{name}");
        }
        for (n, (group, name, _)) in TEXTS.iter().enumerate() {
            assert!(
                config::options().any(|s| s.group == *group && s.name == *name),
                "{group:?} {name}: no such option"
            );
            assert!(!TEXTS[..n].iter().any(|(g, other, _)| g == group && other == name), "{group:?} {name} twice");
        }
    }
}
