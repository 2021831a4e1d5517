//! Host sections, volumes, proxies.

use super::Grammar;
use super::cursor::Cursor;
use super::sections::DISK;
use crate::address::Address;
use crate::document::{
    DeviceNode, DiskNode, HostKind, HostNode, MetaDiskNode, Named, ProxyNode, ProxyOptions, VolumeNode,
};
use crate::error::{Error, ErrorKind, Span};
use crate::options::Settings;
use crate::table::Group;
use crate::tree::{Body, Statement};

/// Greatest minor number.
const MAX_MINOR: u32 = (1 << 20) - 1;
/// Statements of a volume, for messages.
const VOLUME_WORDS: &[&str] = &["device", "disk", "meta-disk", "flexible-meta-disk", "tiebreaker"];
/// Statements of a host section besides those of its implicit volume, for messages.
const HOST_WORDS: &[&str] = &["volume", "address", "node-id", "options", "proxy"];

impl Grammar<'_> {
    /// `on`, `floating`, `stacked-on-top-of`, `_this_host`.
    pub(super) fn host(&mut self, st: &Statement) -> Result<HostNode, Error> {
        let mut cursor = Cursor::after_keyword(st);
        let mut address = None;
        let kind = match st.keyword() {
            "on" => HostKind::On(cursor.words("a host name")?),
            "floating" => {
                let owned = cursor.address()?;
                address = Some((owned.clone(), st.span().clone()));
                HostKind::Floating(owned)
            }
            "stacked-on-top-of" => HostKind::Stacked(cursor.word("the name of the lower resource")?),
            _ => HostKind::ThisHost,
        };
        let mut host = HostNode {
            kind,
            span: st.span().clone(),
            node_id: None,
            address,
            options: Settings::default(),
            volumes: Vec::new(),
            proxy: None,
        };
        if matches!(host.kind, HostKind::Floating(_)) && !cursor.has_body() {
            cursor.end()?;
            return Ok(host);
        }
        for inner in &cursor.body()?.statements {
            if let Err(error) = self.host_statement(&mut host, inner) {
                self.findings.error(error);
            }
        }
        Ok(host)
    }

    fn host_statement(&mut self, host: &mut HostNode, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        match st.keyword() {
            "address" => {
                let address = cursor.address()?;
                cursor.end()?;
                if let HostKind::Floating(_) = host.kind {
                    let message = "a floating host has its address in its first line";
                    return Err(Error::new(ErrorKind::Address, st.span(), message).help("remove this `address`"));
                }
                only_one(host.address.as_ref().map(|(_, span)| span), st)?;
                host.address = Some((address, st.span().clone()));
            }
            "node-id" => {
                let id = cursor.integer("the node-id", 31)?;
                cursor.end()?;
                only_one(host.node_id.as_ref().map(|(_, span)| span), st)?;
                host.node_id = Some((u8::try_from(id).expect("bounded above"), st.span().clone()));
            }
            "options" => {
                let body = cursor.body()?;
                self.settings(&mut host.options, &[Group::Resource], "options", body);
                let message = "`options` in a host section have no effect; write them into the resource";
                self.findings.warn(st.span(), message);
            }
            "proxy" => {
                only_one(host.proxy.as_ref().map(|p| &p.span), st)?;
                host.proxy = Some(self.proxy(&mut cursor, st.span())?);
            }
            _ if self.volume_part(&mut host.volumes, st)? => {}
            _ => return Err(super::unknown_statement(st, "a host section", &[HOST_WORDS, VOLUME_WORDS].concat())),
        }
        Ok(())
    }

    /// `volume N { }` or a statement of the implicit volume; `false` if it is neither.
    pub(super) fn volume_part(&mut self, volumes: &mut Vec<VolumeNode>, st: &Statement) -> Result<bool, Error> {
        if st.keyword() == "volume" {
            let mut cursor = Cursor::after_keyword(st);
            let nr = u16::try_from(cursor.integer("the volume number", 65_535)?).expect("bounded above");
            if let Some(first) = volumes.iter().find(|v| v.nr == nr && !v.implicit) {
                return Err(Error::new(ErrorKind::Duplicate, st.span(), format!("volume {nr} is there twice"))
                    .related(&first.span, "the first one is here"));
            }
            let mut volume = VolumeNode::new(nr, false, st.span());
            for inner in &cursor.body()?.statements {
                match self.volume_statement(&mut volume, inner) {
                    Ok(true) => {}
                    Ok(false) => self.findings.error(super::unknown_statement(inner, "a volume", VOLUME_WORDS)),
                    Err(error) => self.findings.error(error),
                }
            }
            volumes.push(volume);
            return Ok(true);
        }
        if !matches!(st.keyword(), "device" | "disk" | "meta-disk" | "flexible-meta-disk" | "tiebreaker") {
            return Ok(false);
        }
        let at = match volumes.iter().position(|v| v.implicit) {
            Some(at) => at,
            None => {
                volumes.push(VolumeNode::new(0, true, st.span()));
                volumes.len() - 1
            }
        };
        self.volume_statement(&mut volumes[at], st)
    }

    fn volume_statement(&mut self, volume: &mut VolumeNode, st: &Statement) -> Result<bool, Error> {
        let mut cursor = Cursor::after_keyword(st);
        match st.keyword() {
            "disk" if cursor.has_body() => {
                if !volume.options.is_empty() {
                    return Err(Error::new(ErrorKind::Duplicate, st.span(), "a second `disk` section in this volume"));
                }
                self.settings(&mut volume.options, DISK, "disk", cursor.body()?);
            }
            "disk" => {
                only_one(volume.disk.as_ref().map(|d| &d.span), st)?;
                let none = cursor.eat_keyword("none");
                let path = if none { None } else { Some(path_of(&cursor.word("a device path, or `none`")?)?) };
                cursor.end()?;
                volume.disk = Some(DiskNode { path, span: st.span().clone() });
            }
            "device" => {
                only_one(volume.device.as_ref().map(|d| &d.span), st)?;
                volume.device = Some(device(&mut cursor, st.span())?);
            }
            "meta-disk" | "flexible-meta-disk" => {
                only_one(volume.meta_disk.as_ref().map(|m| &m.span), st)?;
                volume.meta_disk = Some(meta_disk(&mut cursor, st)?);
            }
            "tiebreaker" => {
                let word = cursor.word("`yes` or `no`")?;
                cursor.end()?;
                volume.tiebreaker = Some(match word.text.as_str() {
                    "yes" => true,
                    "no" => false,
                    other => {
                        let message = format!("`tiebreaker` takes `yes` or `no`, not `{other}`");
                        return Err(Error::new(ErrorKind::Value, &word.span, message));
                    }
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Behind the word `proxy`: `on H… { inside A; outside A; options { } }`.
    pub(super) fn proxy(&mut self, cursor: &mut Cursor<'_>, span: &Span) -> Result<ProxyNode, Error> {
        if !cursor.eat_keyword("on") {
            return Err(Error::new(ErrorKind::Syntax, cursor.span(), "`on` and a host name must follow `proxy`"));
        }
        let on = cursor.words("a host name")?.into_iter().map(|w| w.text).collect();
        let mut proxy =
            ProxyNode { on, inside: None, outside: None, options: ProxyOptions::default(), span: span.clone() };
        self.proxy_body(&mut proxy, cursor.body()?)?;
        for (what, address) in [("inside", &proxy.inside), ("outside", &proxy.outside)] {
            if address.is_none() {
                let message = format!("this proxy section lacks `{what}`");
                return Err(Error::new(ErrorKind::Proxy, span, message).help("both `inside` and `outside` are needed"));
            }
        }
        Ok(proxy)
    }

    fn proxy_body(&mut self, proxy: &mut ProxyNode, body: &Body) -> Result<(), Error> {
        for st in &body.statements {
            let mut cursor = Cursor::after_keyword(st);
            match st.keyword() {
                "inside" => proxy.inside = Some(address_statement(&mut cursor)?),
                "outside" => proxy.outside = Some(address_statement(&mut cursor)?),
                "options" => self.proxy_options(&mut proxy.options, cursor.body()?)?,
                _ => return Err(super::unknown_statement(st, "a proxy section", &["inside", "outside", "options"])),
            }
        }
        Ok(())
    }
}

fn address_statement(cursor: &mut Cursor<'_>) -> Result<Address, Error> {
    let address = cursor.address()?;
    cursor.end()?;
    Ok(address)
}

fn only_one(first: Option<&Span>, st: &Statement) -> Result<(), Error> {
    match first {
        None => Ok(()),
        Some(first) => Err(Error::new(ErrorKind::Duplicate, st.span(), format!("a second `{}` here", st.keyword()))
            .related(first, "the first one is here")),
    }
}

/// Paths end up in 128-byte fields of other programs.
fn path_of(word: &Named) -> Result<String, Error> {
    if word.text.len() > 127 {
        return Err(Error::new(ErrorKind::Value, &word.span, "this path has more than 127 characters"));
    }
    Ok(word.text.clone())
}

fn meta_disk(cursor: &mut Cursor<'_>, st: &Statement) -> Result<MetaDiskNode, Error> {
    let place = path_of(&cursor.word("`internal` or a device path")?)?;
    let mut index = None;
    if place != "internal" && st.keyword() == "meta-disk" && cursor.eat_mark('[') {
        index = Some(cursor.integer("the index", 255)?);
        if !cursor.eat_mark(']') {
            return Err(Error::new(ErrorKind::Syntax, cursor.span(), "the closing `]` is missing"));
        }
    }
    cursor.end()?;
    Ok(MetaDiskNode { place, index, span: st.span().clone() })
}

/// `device [NAME] [minor N];`
fn device(cursor: &mut Cursor<'_>, span: &Span) -> Result<DeviceNode, Error> {
    let name = if cursor.peek().is_some_and(|t| t.is_keyword("minor")) { None } else { cursor.optional_word() };
    let minor = if cursor.eat_keyword("minor") { Some(cursor.integer("the minor", MAX_MINOR)?) } else { None };
    cursor.end()?;
    let wrong = |message: String, help: &str| Err(Error::new(ErrorKind::Device, span, message).help(help));
    let Some(name) = name else {
        return match minor {
            Some(minor) => Ok(DeviceNode { name: None, minor, span: span.clone() }),
            None => wrong("`device` names no device".to_owned(), "write `device minor N;`"),
        };
    };
    let short = name.text.strip_prefix("/dev/").unwrap_or(&name.text);
    let Some(rest) = short.strip_prefix("drbd") else {
        let message = format!("the device name `{}` does not begin with /dev/drbd", name.text);
        return wrong(message, "write `device minor N;`, or `device /dev/drbdN;`");
    };
    let full = format!("/dev/{short}");
    let number = rest.parse::<u32>().ok().filter(|n| *n <= MAX_MINOR && rest.bytes().all(|b| b.is_ascii_digit()));
    match (number, minor) {
        (Some(n), Some(m)) if n != m => {
            let message = format!("the device name `{full}` says minor {n}, but the statement says minor {m}");
            wrong(message, "make them agree, or leave the name out: `device minor N;`")
        }
        (Some(minor), _) => Ok(DeviceNode { name: Some(full), minor, span: span.clone() }),
        (None, Some(minor)) if rest.starts_with('_') => Ok(DeviceNode { name: Some(full), minor, span: span.clone() }),
        (None, Some(_)) => wrong(format!("`{full}` is not a possible device name"), "write `device minor N;`"),
        (None, None) => wrong(format!("the minor of `{full}` is missing"), "write `device minor N;`"),
    }
}
