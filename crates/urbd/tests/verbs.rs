//! The binary as it is called: exit statuses, dry runs as the real drbdadm prints them, starting and stopping.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct Node {
    dir: TempDir,
    config: PathBuf,
    name: &'static str,
}

impl Node {
    fn with_config(config: PathBuf, name: &'static str) -> Node {
        Node { dir: tempfile::tempdir().unwrap(), config, name }
    }

    /// One node of a resource whose peer is never there.
    fn alone(port: u16) -> Node {
        let mut node = Node::with_config(PathBuf::new(), "alpha");
        let dir = node.dir.path().to_owned();
        File::create(dir.join("disk")).unwrap().set_len(16 << 20).unwrap();
        let text = format!(
            "resource r0 {{\n  urbd {{ front-end none; }}\n  volume 0 {{ device minor 5; disk {}; meta-disk internal; }}\n\
             \x20 on alpha {{ node-id 0; address 127.0.0.1:{port}; }}\n\
             \x20 on bravo {{ node-id 1; address 127.0.0.2:{port}; }}\n}}\n",
            dir.join("disk").display()
        );
        node.config = dir.join("urbd.conf");
        fs::write(&node.config, text).unwrap();
        node
    }

    fn call(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_urbd"));
        command.env("URBD_CONF", &self.config).env("URBD_NODE", self.name);
        command.env("URBD_RUN_DIR", self.dir.path().join("run")).stdin(Stdio::null());
        command.args(arguments).output().unwrap()
    }

    fn exit(&self, arguments: &[&str]) -> i32 {
        self.call(arguments).status.code().unwrap()
    }

    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.call(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn complaint(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.call(arguments).stderr).unwrap()
    }
}

/// A resource that a failed test left running must not outlive it.
impl Drop for Node {
    fn drop(&mut self) {
        self.call(&["down", "--force", "r0"]);
    }
}

fn good(sample: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/good").join(sample)
}

#[test]
fn a_process_that_does_not_answer_can_be_killed() {
    let node = Node::alone(17_805);
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["up", "r0"]), 0);
    let pid = fs::read_to_string(node.dir.path().join("run/r0.pid")).unwrap();
    let stopped = Command::new("kill").args(["-STOP", pid.trim()]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(node.exit(&["down", "--force", "r0"]), 0);
    assert_eq!(node.exit(&["status", "r0"]), 10);
    assert_eq!(node.exit(&["apply-al", "r0"]), 0, "the disk is free again");
}

/// Verbs whose dry runs are compared; with what drbdmeta is called is our own choice of format.
const DRY_RUNS: [&str; 22] = [
    "primary",
    "secondary",
    "down",
    "connect",
    "disconnect",
    "detach",
    "wait-connect",
    "wait-sync",
    "invalidate-remote",
    "verify",
    "role",
    "cstate",
    "dstate",
    "new-current-uuid",
    "pause-sync",
    "resume-sync",
    "suspend-io",
    "resume-io",
    "get-gi",
    "show-gi",
    "resize",
    "check-resize",
];

#[test]
fn dry_runs_print_what_the_real_tool_prints() {
    let mut compared = 0;
    for sample in ["01-classic-84", "02-twonode-v9", "06-multi-volume-override", "07-mesh-3node"] {
        let expected = fs::read_to_string(good(sample).join("expected.json")).unwrap();
        let runs: Vec<serde_json::Value> = serde_json::from_str(&expected).unwrap();
        let node = Node::with_config(good(sample).join("drbd.conf"), "alpha");
        for run in runs {
            let words: Vec<&str> = run["argv"].as_array().unwrap().iter().filter_map(|w| w.as_str()).collect();
            let ["drbdadm", "-d", verb, "all"] = words.as_slice() else { continue };
            if run["host"] != "alpha" || run["module"] != "9.2.14" || !DRY_RUNS.contains(verb) {
                continue;
            }
            let setup = |lines: Vec<String>| -> Vec<String> {
                lines.into_iter().filter(|line| line.starts_with("drbdsetup")).collect()
            };
            let real = run["stdout"].as_array().unwrap().iter().filter_map(|l| l.as_str()).map(str::to_owned);
            assert_eq!(setup(node.lines(&["-d", verb, "all"])), setup(real.collect()), "{sample} {verb}");
            compared += 1;
        }
    }
    assert!(compared >= 4 * DRY_RUNS.len(), "{compared}");
}

#[test]
fn shell_verbs_print_plain_values() {
    let node = Node::with_config(good("02-twonode-v9").join("drbd.conf"), "alpha");
    let expected = [
        ("sh-resource", "r0"),
        ("sh-minor", "10"),
        ("sh-ll-dev", "/dev/vg0/r0"),
        ("sh-md-dev", "/dev/vg0/r0"),
        ("sh-md-idx", "internal"),
        ("sh-ip", "10.1.1.1"),
    ];
    for (verb, value) in expected {
        assert_eq!(node.lines(&[verb, "all"]), [value], "{verb}");
    }
    assert_eq!(node.lines(&["sh-resources"]), ["r0"]);
    assert_eq!(node.lines(&["sh-mod-parms"]), ["minor_count=32"]);
    assert!(node.lines(&["sh-nop"]).is_empty());
    assert_eq!(node.exit(&["sh-lr-of", "r0"]), 1);
}

#[test]
fn udev_gets_the_links_that_the_real_tool_gives() {
    let node = Node::with_config(good("01-classic-84").join("drbd.conf"), "alpha");
    let expected = [
        "DEVICE=drbd1",
        "SYMLINK=drbd/by-res/mail",
        "SYMLINK_BY_RES=drbd/by-res/mail",
        "SYMLINK_BY_DISK=drbd/by-disk/sda7",
    ];
    assert_eq!(node.lines(&["sh-udev", "minor-1"]), expected);
    assert_eq!(node.exit(&["sh-udev", "minor-99"]), 1);
}

#[test]
fn handlers_are_verbs() {
    let node = Node::alone(17_804);
    let config = fs::read_to_string(&node.config).unwrap();
    let handlers = "resource r0 { handlers { split-brain \"echo $DRBD_RESOURCE $DRBD_MINOR $DRBD_PEERS; exit 7\"; }";
    fs::write(&node.config, config.replace("resource r0 {", handlers)).unwrap();
    let output = node.call(&["split-brain", "minor-5"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "r0 5 bravo\n");
    assert_eq!(node.exit(&["fence-peer", "r0"]), 0, "none is configured");
}

#[test]
fn exit_statuses_of_bad_calls_and_files() {
    let node = Node::with_config(good("02-twonode-v9").join("drbd.conf"), "alpha");
    for bad in
        [&["nonsense"][..], &["up"], &["up", "none"], &["attach", "r0/9"], &["connect", "r0:none"], &["up", "r0/0"]]
    {
        let output = node.call(bad);
        assert_eq!(output.status.code(), Some(1), "{bad:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{bad:?}: {output:?}");
    }
    assert!(node.complaint(&["up", "none"]).contains("r0"), "the known names are listed");
    let swapped = node.call(&["r0", "up", "--force"]);
    assert_eq!(swapped.status.code(), Some(1));
    let said = String::from_utf8(swapped.stderr).unwrap();
    assert_eq!(said, "urbd: r0 up: the verb comes first\nurbd: hint: urbd up r0 --force\n");
    let missing = Node::with_config("/nonexistent.conf".into(), "alpha");
    assert!(!missing.complaint(&["up", "all"]).contains("os error"));
    assert_eq!(missing.exit(&["up", "all"]), 20);
    let stranger = Node::with_config(good("02-twonode-v9").join("drbd.conf"), "nobody");
    assert_eq!(stranger.exit(&["up", "all"]), 1);
}

#[test]
fn what_has_ended_is_shown_with_its_reason() {
    let node = Node::alone(17_810);
    assert_eq!(node.exit(&["up", "r0"]), 1, "no metadata");
    let [line] = &node.lines(&["status", "all"])[..] else { panic!("one line") };
    assert!(line.starts_with("r0 not running: its process ended: r0/0: No valid meta data found on "), "{line}");
    let why = node.complaint(&["why", "r0"]);
    assert!(why.contains(&line.replace("r0 not running: ", "r0: does not run: ")), "{why}");
    assert_eq!(node.exit(&["why", "r0"]), 10);
    assert!(
        line.ends_with("; on a new disk write fresh metadata with: urbd create-md r0/0; then: urbd up r0"),
        "{line}"
    );
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["up", "r0"]), 0);
    assert!(!node.lines(&["status"]).iter().any(|line| line.contains("not running")));
    assert!(node.lines(&["metrics"]).contains(&"urbd_resource_running{resource=\"r0\"} 1".to_owned()));
    let pid = fs::read_to_string(node.dir.path().join("run/r0.pid")).unwrap();
    assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
    let gone = || !Path::new(&format!("/proc/{}/exe", pid.trim())).exists();
    while !gone() {
        std::thread::yield_now();
    }
    assert_eq!(node.lines(&["status"]), ["r0 not running: its process was killed. Next: urbd up r0"]);
    assert_eq!(node.exit(&["up", "r0"]), 0, "what it says next works");
    assert_eq!(node.exit(&["down", "r0"]), 0);
    let stopped = "r0 not running: it was not started, or it was stopped. Next: urbd up r0";
    let row = "r0: not running: it was not started, or it was stopped. Next: urbd up r0";
    for call in [&["top", "--once"][..], &["top", "--once", "r0"]] {
        let shown = node.lines(call);
        assert!(shown.iter().any(|line| line == row) && shown[1].starts_with(" !r0 "), "{shown:#?}");
    }
    let refused = node.complaint(&["status", "r0"]);
    assert!(refused.contains("No such resource (it does not run on this node): it was not started"), "{refused}");
    assert!(refused.contains("hint: next: urbd up r0"), "{refused}");
    assert_eq!(node.lines(&["status"]), [stopped]);
}

#[test]
fn what_does_not_run_is_said_to_be_so() {
    let node = Node::alone(17_801);
    let never = "r0 not running: it was not started, or it was stopped. Next: urbd up r0";
    assert_eq!(node.lines(&["status"]), [never]);
    assert!(node.lines(&["metrics"]).contains(&"urbd_resource_running{resource=\"r0\"} 0".to_owned()));
    // Programs read what DRBD's tools print: by their names it is that, and no more.
    for name in ["drbdadm", "drbdsetup"] {
        let mut drbds = Command::new(env!("CARGO_BIN_EXE_urbd"));
        drbds.arg0(name).env("URBD_CONF", &node.config).env("URBD_NODE", node.name);
        let output = drbds.env("URBD_RUN_DIR", node.dir.path().join("run")).arg("status").output().unwrap();
        assert_eq!(output.stdout, b"# No currently configured DRBD found.\n", "{name}");
        assert_eq!(output.status.code(), Some(0), "{name}");
    }
    assert_eq!(node.lines(&["status", "--json"]), ["[]"]);
    assert_eq!(node.exit(&["status", "r0"]), 10);
    assert!(node.complaint(&["status", "r0"]).contains("No such resource"));
    assert_eq!(node.exit(&["role", "r0"]), 10);
    assert_eq!(node.lines(&["events2", "--now"]), ["exists -"]);
    for harmless in ["down", "secondary", "disconnect", "detach"] {
        assert_eq!(node.exit(&[harmless, "r0"]), 0, "{harmless}");
    }
}

#[test]
fn offline_metadata_from_create_to_restore() {
    let node = Node::alone(17_802);
    assert_eq!(node.exit(&["dump-md", "r0"]), 255);
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["create-md", "r0"]), 1, "no terminal to ask on");
    assert_eq!(node.exit(&["--", "--force", "create-md", "r0/0"]), 0);
    assert_eq!(node.lines(&["dstate", "r0"]), ["Inconsistent/DUnknown"]);
    assert_eq!(node.exit(&["outdate", "r0"]), 5);
    assert_eq!(node.exit(&["set-gi", "--force", "--gi", "ABCDEF0123456780:0:0:0:1:1", "r0"]), 0);
    assert!(node.lines(&["get-gi", "r0"])[0].starts_with("ABCDEF0123456780:0000000000000000:"));
    assert_eq!(node.exit(&["outdate", "r0"]), 0);
    assert_eq!(node.lines(&["dstate", "r0"]), ["Outdated/DUnknown"]);
    let dump = node.call(&["dump-md", "r0"]).stdout;
    let file = node.dir.path().join("dump");
    fs::write(&file, &dump).unwrap();
    assert_eq!(node.exit(&["wipe-md", "r0"]), 1);
    assert_eq!(node.exit(&["wipe-md", "--force", "r0"]), 0);
    assert_eq!(node.exit(&["get-gi", "r0"]), 255);
    let file = file.to_str().unwrap();
    assert_eq!(node.exit(&["restore-md", "r0/0", file]), 1);
    assert_eq!(node.exit(&["restore-md", "--force", "r0/0", file]), 0);
    assert_eq!(node.lines(&["dstate", "r0"]), ["Outdated/DUnknown"]);
}

#[test]
fn up_tells_why_it_failed_and_down_ends_the_process() {
    let node = Node::alone(17_803);
    assert_eq!(node.exit(&["up", "r0"]), 1);
    assert!(node.complaint(&["up", "r0"]).contains("No valid meta data found"));
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["up", "all"]), 0);
    assert_eq!(node.exit(&["up", "r0"]), 1, "runs already");
    assert_eq!(node.lines(&["role", "r0"]), ["Secondary"]);
    assert_eq!(node.lines(&["status"])[0], "r0 role:Secondary");
    assert!(node.lines(&["dump-md", "r0"])[0].contains("might be stale"), "in use: no more than a glance");
    assert_eq!(node.exit(&["wipe-md", "--force", "r0"]), 20, "in use");
    assert_eq!(node.exit(&["primary", "r0"]), 17);
    assert!(node.complaint(&["primary", "r0"]).contains("State change failed: (-2) Need access to UpToDate data"));
    assert_eq!(node.exit(&["primary", "--force", "r0"]), 0);
    assert_eq!(node.lines(&["role", "r0"]), ["Primary"]);
    assert_eq!(node.exit(&["wait-connect", "--wfc-timeout", "1", "r0"]), 5);
    assert!(node.lines(&["-d", "adjust", "r0"]).is_empty(), "it runs as configured");
    let events = node.lines(&["events2", "--now", "r0"]);
    assert!(events[0].starts_with("exists resource name:r0 role:Primary "), "{events:?}");
    assert_eq!(events.last().unwrap(), "exists -");
    let why = node.lines(&["why", "r0"]);
    let head = why.iter().position(|line| line == "Decisions and what they changed, newest last, in UTC:").unwrap();
    let times: Vec<&str> = why[head + 1..].iter().map(|line| &line[..19]).collect();
    let is_time = |time: &&&str| time.starts_with("20") && time[10..].matches(':').count() == 2;
    assert!(times.len() > 3 && times.iter().all(|time| is_time(&time)), "{why:#?}");
    let (attached, primary) = ("disk( Attaching -> Inconsistent )", "role( Secondary -> Primary )");
    let at =
        |words: &str| why.iter().position(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {why:#?}"));
    assert!(at(attached) < at(primary), "{why:#?}");
    assert_eq!(node.exit(&["secondary", "r0"]), 0);
    assert_eq!(node.exit(&["down", "r0"]), 0);
    assert_eq!(node.exit(&["status", "r0"]), 10);
    assert_eq!(node.exit(&["wipe-md", "--force", "r0"]), 0, "nobody holds the disk any more");
}

/// The line of an option in the running configuration.
fn shown(node: &Node, option: &str) -> Option<String> {
    let lines = node.lines(&["show", "r0"]);
    lines.iter().find(|line| line.trim_start().starts_with(option)).map(|line| line.trim().replace('\t', " "))
}

#[test]
fn options_of_what_runs_are_changed_until_the_next_adjust() {
    let node = Node::alone(17_806);
    let config = fs::read_to_string(&node.config).unwrap();
    fs::write(&node.config, config.replace("resource r0 {", "resource r0 { disk { c-min-rate 4M; } ")).unwrap();
    assert_eq!(node.exit(&["disk-options", "--al-extents=3001", "r0"]), 10, "it does not run");
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["up", "r0"]), 0);
    for call in [
        &["disk-options", "r0/0", "--al-extents=3001", "--c-max-rate", "200M", "--no-such=1"][..],
        &["disk-options", "r0", "--al-extents=1"],
        &["disk-options", "r0", "--c-min-rate=4X"],
        &["disk-options", "r0/7", "--al-extents=3001"],
        &["net-options", "r0/0", "--max-buffers=80k"],
    ] {
        let output = node.call(call);
        let limited = call[2] == "--al-extents=1";
        assert_eq!(output.status.code(), Some(if limited { 0 } else { 1 }), "{call:?} {output:?}");
    }
    assert_eq!(node.exit(&["disk-options", "r0/0", "--al-extents=3001", "--disk-flushes=no", "--md-flushes"]), 0);
    assert_eq!(node.exit(&["net-options", "r0:bravo", "--max-buffers=80k", "--protocol", "A"]), 0);
    assert_eq!(node.exit(&["peer-device-options", "r0:bravo/0", "--c-max-rate=200M"]), 0);
    assert_eq!(node.exit(&["resource-options", "r0", "--on-no-data-accessible=suspend-io"]), 0);
    for (option, line) in [
        ("al-extents", "al-extents       3001;"),
        ("disk-flushes", "disk-flushes     no;"),
        ("max-buffers", "max-buffers      81920;"),
        ("protocol", "protocol         A;"),
        ("c-max-rate", "c-max-rate       204800k;"),
        ("c-min-rate", "c-min-rate       4096k;"),
        ("on-no-data", "on-no-data-accessible suspend-io;"),
    ] {
        assert_eq!(shown(&node, option).as_deref(), Some(line));
    }
    let plan = node.lines(&["-d", "adjust", "r0"]);
    assert_eq!(plan.len(), 4, "adjust takes all of it back: {plan:?}");
    assert_eq!(
        node.lines(&["-d", "peer-device-options", "r0", "--c-max-rate=1M"]),
        ["drbdsetup peer-device-options r0 1 0 --c-max-rate=1M"]
    );
    assert_eq!(node.exit(&["peer-device-options", "r0", "--set-defaults", "--c-max-rate=300M"]), 0);
    assert_eq!(shown(&node, "c-min-rate"), None, "its default again");
    assert_eq!(shown(&node, "c-max-rate").unwrap(), "c-max-rate       307200k;");
    assert_eq!(node.exit(&["disk-options", "r0"]), 0);
    assert_eq!(shown(&node, "c-min-rate").unwrap(), "c-min-rate       4096k;", "as configured again");
    assert_eq!((shown(&node, "al-extents"), shown(&node, "c-max-rate")), (None, None));
    assert_eq!(node.exit(&["adjust", "r0"]), 0);
    assert!(node.lines(&["-d", "adjust", "r0"]).is_empty());
}

/// Everything that drbdadm 9.22 lists in `help` and `hidden-commands`.
const DRBDADM: &[&str] = &[
    "adjust",
    "adjust-with-progress",
    "apply-al",
    "attach",
    "connect",
    "create-md",
    "cstate",
    "del-path",
    "del-peer",
    "detach",
    "disconnect",
    "disk-options",
    "down",
    "dstate",
    "dump",
    "dump-md",
    "dump-xml",
    "get-gi",
    "hidden-commands",
    "invalidate",
    "invalidate-remote",
    "net-options",
    "new-path",
    "new-peer",
    "outdate",
    "pause-sync",
    "peer-device-options",
    "primary",
    "resize",
    "resource-options",
    "resume-sync",
    "role",
    "secondary",
    "show-gi",
    "status",
    "up",
    "verify",
    "wait-con-int",
    "wait-connect",
    "wait-sync",
    "wipe-md",
    "new-resource",
    "proxy-down",
    "proxy-up",
    "sh-dev",
    "sh-ip",
    "sh-ll-dev",
    "sh-lr-of",
    "sh-md-dev",
    "sh-md-idx",
    "sh-minor",
    "sh-mod-parms",
    "sh-nop",
    "sh-resource",
    "sh-resources",
    "sh-udev",
    "after-resync-target",
    "before-resync-source",
    "before-resync-target",
    "disconnected",
    "fence-peer",
    "initial-split-brain",
    "local-io-error",
    "out-of-sync",
    "pri-lost",
    "pri-lost-after-sb",
    "pri-on-incon-degr",
    "quorum-lost",
    "split-brain",
    "unfence-peer",
    "check-resize",
    "del-minor",
    "new-current-uuid",
    "new-minor",
    "resume-io",
    "set-gi",
    "suspend-io",
];

#[test]
fn the_documented_list_of_missing_verbs_is_true() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = fs::read_to_string(file).unwrap();
    let (_, section) = text.split_once("## Verbs of drbdadm that are not there\n").expect("the section begins");
    let rows = section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap());
    let mut documented: Vec<&str> =
        cells.flat_map(|cell| cell.split(['`', ',', ' ']).filter(|w| !w.is_empty())).collect();
    documented.sort_unstable();
    let node = Node::alone(7799);
    let is_missing = |verb: &&str| node.complaint(&[*verb, "--help"]).contains("unrecognized subcommand");
    let mut missing: Vec<&str> = DRBDADM.iter().copied().filter(is_missing).collect();
    missing.sort_unstable();
    assert_eq!(documented, missing);
}

#[test]
fn a_third_host_needs_metadata_that_have_a_place_for_it() {
    let node = Node::alone(7797);
    let text = fs::read_to_string(&node.config).unwrap();
    let third =
        "  on charlie { node-id 2; address 127.0.0.3:7797; }\n  connection-mesh { hosts alpha bravo charlie; }\n}\n";
    fs::write(&node.config, text.strip_suffix("}\n").unwrap().to_owned() + third).unwrap();
    // Of two hosts' time.
    assert!(node.call(&["create-md", "--force", "--format=v08", "r0"]).status.success());
    let complaint = node.complaint(&["up", "r0"]);
    assert!(complaint.contains("knows one peer") && complaint.contains("--max-peers"), "{complaint}");
    node.exit(&["down", "r0"]);
    // What is there is kept where it has room for all, and is not given up by the way.
    let complaint = node.complaint(&["create-md", "--force", "r0"]);
    assert!(complaint.contains("room for one peer, and not for 2") && complaint.contains("wipe-md"), "{complaint}");
    assert!(node.call(&["wipe-md", "--force", "r0"]).status.success());
    // As many places as there are peers, unless something else is wanted.
    assert!(node.call(&["create-md", "--force", "r0"]).status.success());
    assert_eq!(node.exit(&["up", "r0"]), 0);
    assert_eq!(node.exit(&["down", "r0"]), 0);
}

#[test]
fn a_configuration_without_resources_can_be_looked_at() {
    for text in ["", "global { usage-count no; }\ncommon { net { protocol C; } }\n", "include \"none.d/*.res\";\n"] {
        let mut node = Node::with_config(PathBuf::new(), "alpha");
        node.config = node.dir.path().join("urbd.conf");
        fs::write(&node.config, text).unwrap();
        for looks in ["sh-nop", "sh-resources", "dump", "dump-xml", "sh-mod-parms", "sh-list-adjustable", "status"] {
            for call in [vec![looks], vec![looks, "all"]] {
                let output = node.call(&call);
                assert_eq!(output.status.code(), Some(0), "{text:?} {call:?}: {output:?}");
            }
        }
        assert!(node.lines(&["sh-list-adjustable", "all"]).is_empty());
        assert_eq!(node.lines(&["sh-resources"]), [""]);
        assert_eq!(node.lines(&["sh-mod-parms"]), ["minor_count=32"]);
        for acts in [["up", "all"], ["adjust", "all"], ["create-md", "r0"]] {
            let complaint = node.complaint(&acts);
            assert!(complaint.contains("urbd.conf defines no resource"), "{acts:?}: {complaint}");
            assert_eq!(node.exit(&acts), 1, "{acts:?}");
        }
    }
}

#[test]
fn a_file_is_tested_before_it_takes_the_place_of_another() {
    let mut node = Node::alone(17_806);
    let dir = node.dir.path().to_owned();
    let (old, new) = (dir.join("r0.res"), dir.join("r0.new"));
    fs::rename(&node.config, &old).unwrap();
    node.config = dir.join("main.conf");
    fs::write(&node.config, "include \"*.res\";\n").unwrap();
    let good = fs::read_to_string(&old).unwrap().replace("17806", "17807");
    let [old, new] = [&old, &new].map(|path| path.to_str().unwrap());
    fs::write(new, &good).unwrap();
    assert_eq!(node.exit(&["--config-to-test", new, "--config-to-exclude", old, "sh-nop"]), 0);
    assert!(node.lines(&["-t", new, "-E", old, "dump"]).iter().any(|line| line.contains("17807")));
    assert!(node.lines(&["dump"]).iter().any(|line| line.contains("17806")));
    assert_eq!(node.exit(&["--config-to-test", new, "sh-nop"]), 10, "two resources of one name");
    fs::write(new, good.replace("node-id 1", "node-id 0")).unwrap();
    assert_eq!(node.exit(&["sh-nop", "-t", new, "-E", old]), 10);
    assert!(node.complaint(&["sh-nop", "-t", new, "-E", old]).contains("r0.new:"));
    for acts in ["create-md", "up", "status"] {
        let complaint = node.complaint(&["-t", new, "-E", old, acts, "r0"]);
        assert!(complaint.contains("--config-to-test and --config-to-exclude are for"), "{acts}: {complaint}");
        assert_eq!(node.exit(&["-t", new, "-E", old, acts, "r0"]), 1, "{acts}");
    }
}

#[test]
fn amounts_have_suffixes_and_values_stand_behind_blanks() {
    let node = Node::alone(17_808);
    let calls: [&[&str]; 3] = [
        &["-vvv", "--max-peers", "7", "--bitmap-block-size", "64k", "--", "--force", "create-md", "r0/0"],
        &["create-md", "--force", "r0", "--max-peers", "7", "--bitmap-block-size=64K", "--al-stripe-size-kB", "64k"],
        &["--force", "create-md", "r0", "--max-peers=7", "--bitmap-block-size", "65536", "--effective-size", "4M"],
    ];
    for call in calls {
        let made = node.call(call);
        assert!(made.status.success(), "{call:?}: {made:?}");
        let text = node.lines(&["dump-md", "r0/0"]).join("\n");
        for wanted in ["max-peers 7;", "bm-byte-per-bit 65536;"] {
            assert!(text.contains(wanted), "{call:?}: {wanted}: {text}");
        }
    }
    assert!(node.complaint(&["create-md", "r0", "--bitmap-block-size=64x"]).contains("must be a number"));
    assert_eq!(node.exit(&["create-md", "r0", "--bitmap-block-size=64x"]), 1);
    assert_eq!(node.exit(&["wait-con-int", "-t", "1"]), 10, "r0 does not run, and was waited for without its name");
}

#[test]
fn peers_are_found_by_short_and_full_names_and_no_list_is_empty() {
    let mut node = Node::with_config(PathBuf::new(), "ALPHA.example.com");
    node.config = node.dir.path().join("urbd.conf");
    let resource = |name: &str, minor: u32, hosts: [&str; 2]| {
        format!(
            "resource {name} {{ device minor {minor}; disk none;\n\
             \x20 on {} {{ node-id 0; address 127.0.0.1:{minor}; }}\n  on {} {{ node-id 1; address 127.0.0.2:{minor}; }}\n}}\n",
            hosts[0], hosts[1]
        )
    };
    let alone = "resource r2 { device minor 7903; disk none; on alpha { node-id 0; address 127.0.0.1:7903; } }\n";
    let both = resource("r0", 7901, ["alpha.here", "alpha.there"]);
    node.name = "alpha";
    fs::write(&node.config, both + &resource("r1", 7902, ["alpha", "bravo.example.com"]) + alone).unwrap();
    for peer in ["bravo", "BRAVO", "bravo.example.com", "1"] {
        assert_eq!(node.lines(&["-d", "connect", &format!("r1:{peer}")]), ["drbdsetup connect r1 1"], "{peer}");
    }
    // r0 has two sections for this host: the others are served all the same.
    for call in [vec!["-d", "connect", "all"], vec!["sh-resources"], vec!["sh-minor", "all"]] {
        let output = node.call(&call);
        assert_eq!(output.status.code(), Some(10), "{call:?}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(["r1", "7902"].iter().any(|word| said.contains(word)), "{call:?}: {said}");
    }
    assert!(node.complaint(&["connect", "r1:alpha.example.com"]).contains("this is the own host"));
    assert!(node.complaint(&["connect", "r2:bravo"]).contains("r2 has no peers: it has no connection"));
}

#[test]
fn a_warning_is_said_once() {
    let node = Node::alone(17_809);
    let text = fs::read_to_string(&node.config).unwrap();
    let text = text.replace("  volume 0", "  disk { max-bio-bvecs 1; }\n  net { transport tcp; }\n  volume 0");
    let other =
        text.replace("r0", "r1").replace("minor 5", "minor 6").replace("17809", "17810").replace("/disk", "/other");
    fs::write(&node.config, text + &other).unwrap();
    // Its disk has no metadata: the process that `up` starts says why it ends.
    for call in [&["up", "r0"][..], &["create-md", "r0"], &["up", "r0"], &["adjust", "r0"], &["dump"], &["sh-nop"]] {
        let said = node.complaint(call);
        for option in ["max-bio-bvecs", "transport"] {
            assert_eq!(said.matches(&format!("option `{option}` is accepted")).count(), 1, "{call:?}: {said}");
        }
        let places = said.lines().find(|line| line.contains("max-bio-bvecs")).unwrap();
        assert!(places.ends_with("(and at one more place)"), "{call:?}: {said}");
    }
    // Verbs that neither check the configuration nor put it into effect say nothing of it.
    for call in [&["sh-dev", "r0"][..], &["role", "r0"], &["primary", "r0"], &["secondary", "r0"], &["down", "r0"]] {
        assert!(!node.complaint(call).contains("warning"), "{call:?}: {}", node.complaint(call));
    }
    fs::remove_file(node.dir.path().join("disk")).unwrap();
    let said = node.complaint(&["up", "r0"]);
    assert!(said.contains("cannot open"), "{said}");
    assert_eq!(said.matches("warning:").count(), 2, "{said}");
}

#[test]
fn metadata_of_a_disk_that_has_grown_is_not_replaced() {
    let node = Node::alone(17_815);
    let disk = node.dir.path().join("disk");
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    let before = node.lines(&["get-gi", "r0"]);
    File::options().write(true).open(&disk).unwrap().set_len(24 << 20).unwrap();
    for (verb, status) in [("create-md", 10), ("dstate", 255)] {
        let refused = node.call(&[verb, "r0"]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(status), "{verb}: {said}");
        assert!(said.contains("has grown from 16384 to 24576 KiB"), "{verb}: {said}");
        assert!(said.ends_with("to move it, and keep all data: urbd check-resize r0/0\n"), "{verb}: {said}");
    }
    // The same may be so where nobody has noted a size.
    fs::remove_file(node.dir.path().join("run.known/drbd-minor-5.lkbd")).unwrap();
    let said = node.complaint(&["dstate", "r0"]);
    assert!(said.contains("if the disk has grown, its metadata is at its old end: urbd check-resize r0/0;"), "{said}");
    assert_eq!(node.exit(&["check-resize", "r0/0"]), 0);
    assert_eq!(node.lines(&["get-gi", "r0"]), before);
}

#[test]
fn the_format_of_metadata_follows_the_dialect_and_what_is_there() {
    let node = Node::alone(17_816);
    let with_ids = fs::read_to_string(&node.config).unwrap();
    let text = with_ids.replace("node-id 0; ", "").replace("node-id 1; ", "");
    fs::write(&node.config, &text).unwrap();
    let formats = || node.lines(&["dump-md", "r0"]).into_iter().find(|line| line.starts_with("version ")).unwrap();
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(formats(), "version \"v08\";");
    fs::write(&node.config, with_ids).unwrap();
    // A pair may use what is there: it is neither converted nor replaced unasked, also by force.
    for call in [&["create-md", "r0"][..], &["create-md", "--force", "r0"]] {
        let refused = node.call(call);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(10), "{said}");
        assert!(said.contains("has v08 metadata, and the configuration means v09"), "{said}");
        assert!(said.contains("urbd create-md r0/0 --format=v09") && said.contains("--format=v08"), "{said}");
    }
    assert_eq!(formats(), "version \"v08\";");
    assert_eq!(node.exit(&["create-md", "--force", "r0/0", "--format=v09"]), 0);
    assert_eq!(formats(), "version \"v09\";");
    assert_eq!(node.exit(&["wipe-md", "--force", "r0"]), 0);
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(formats(), "version \"v09\";");
    fs::write(&node.config, text).unwrap();
    assert_eq!(node.exit(&["create-md", "--force", "r0"]), 10);
    assert_eq!(formats(), "version \"v09\";");
}

#[test]
fn programs_are_told_the_version_of_the_dialect_that_is_spoken() {
    let asked = |name: &str, option: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_urbd")).arg0(name).arg(option).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{name} {option}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = asked("drbdadm", "--version");
    assert!(said.contains("DRBD_KERNEL_VERSION_CODE=0x090301\nDRBD_KERNEL_VERSION=9.3.1\n"), "{said}");
    for (name, option) in [("drbdsetup", "--version"), ("drbdsetup", "-V"), ("drbdadm", "-V"), ("urbd", "--version")] {
        assert_eq!(asked(name, option), said, "{name} {option}");
    }
    // A file that wants the same is understood.
    let node = Node::alone(17_817);
    let text = fs::read_to_string(&node.config).unwrap();
    fs::write(&node.config, format!("require-drbd-module-version-ge 9.3.1;\n{text}")).unwrap();
    assert_eq!(node.exit(&["sh-nop"]), 0, "{}", node.complaint(&["sh-nop"]));
}

/// Two or three hosts of DRBD 9, each node with a disk; the others are never there.
fn nine(hosts: usize, port: u16) -> Node {
    let mut node = Node::with_config(PathBuf::new(), "alpha");
    let dir = node.dir.path().to_owned();
    File::create(dir.join("disk")).unwrap().set_len(16 << 20).unwrap();
    let names = &["alpha", "bravo", "charlie"][..hosts];
    let sections = names.iter().enumerate().map(|(id, name)| {
        let disk = if id == 0 { dir.join("disk") } else { PathBuf::from("/dev/drbd/this/is/not/used") };
        format!("  on {name} {{ node-id {id}; address 127.0.0.{}:{port}; disk {}; }}\n", id + 1, disk.display())
    });
    let text = format!(
        "resource r0 {{\n  urbd {{ front-end none; }}\n  device minor 5; meta-disk internal;\n\
         {}  connection-mesh {{ hosts {}; }}\n}}\n",
        sections.collect::<String>(),
        names.join(" ")
    );
    node.config = dir.join("urbd.conf");
    fs::write(&node.config, text).unwrap();
    node
}

#[test]
fn adjust_starts_what_does_not_run_with_or_without_its_disk() {
    for node in [Node::alone(17_861), nine(2, 17_862), nine(3, 17_863)] {
        let says_nothing = |arguments: &[&str]| {
            let output = node.call(arguments);
            let quiet = output.stdout.is_empty() && output.stderr.is_empty();
            assert!(output.status.success() && quiet, "{arguments:?}: {output:?}");
        };
        let own_disk = || node.lines(&["dstate", "r0"])[0].split('/').next().unwrap().to_owned();
        assert_eq!(node.exit(&["create-md", "--max-peers", "2", "r0"]), 0);
        // Its disk is not even there.
        let (disk, away) = (node.dir.path().join("disk"), node.dir.path().join("away"));
        fs::rename(&disk, &away).unwrap();
        assert_eq!(node.exit(&["adjust", "r0"]), 20, "as up");
        assert_eq!(node.lines(&["sh-list-adjustable", "all"]), ["r0"]);
        says_nothing(&["adjust", "--skip-disk", "r0"]);
        assert_eq!(own_disk(), "Diskless");
        assert!(node.lines(&["cstate", "r0"]).iter().all(|state| state == "Connecting"), "the net is not skipped");
        says_nothing(&["adjust", "--skip-disk", "r0"]);
        assert_eq!(own_disk(), "Diskless");
        assert_eq!(node.lines(&["sh-list-adjustable", "all"]), ["r0"], "the disk is to be attached");
        fs::rename(&away, &disk).unwrap();
        says_nothing(&["adjust", "r0"]);
        assert_eq!(own_disk(), "Inconsistent");
        assert!(node.lines(&["sh-list-adjustable", "all"]).is_empty());
        says_nothing(&["adjust", "r0"]);
        assert_eq!(node.exit(&["down", "r0"]), 0);
        says_nothing(&["adjust", "r0"]);
        assert_eq!(own_disk(), "Inconsistent", "as up");
        assert_eq!(node.exit(&["down", "r0"]), 0);
    }
}

#[test]
fn what_is_to_be_adjusted_is_listed_with_handlers_too() {
    let node = Node::alone(17_864);
    assert_eq!(node.exit(&["create-md", "r0"]), 0);
    assert_eq!(node.exit(&["up", "r0"]), 0);
    assert!(node.lines(&["sh-list-adjustable", "all"]).is_empty());
    let before = fs::read_to_string(&node.config).unwrap();
    for change in ["handlers { split-brain /bin/true; }", "net { max-buffers 4000; }", "disk { on-io-error pass_on; }"]
    {
        fs::write(&node.config, before.replacen("  volume 0", &format!("  {change}\n  volume 0"), 1)).unwrap();
        assert_eq!(node.lines(&["sh-list-adjustable", "all"]), ["r0"], "{change}");
        assert_eq!(node.lines(&["sh-list-adjustable"]), ["r0"], "{change}");
        assert_eq!(node.exit(&["adjust", "r0"]), 0, "{change}");
        assert!(node.lines(&["sh-list-adjustable", "all"]).is_empty(), "{change}");
    }
}
