//! `connection`, `path`, `connection-mesh`.

use super::Grammar;
use super::cursor::Cursor;
use super::sections::once;
use crate::document::{ConnectionNode, HostRef, MeshNode, Named, PathNode, RunningNode};
use crate::error::{Error, ErrorKind};
use crate::options::Settings;
use crate::table::Group;
use crate::tree::Statement;

const CONNECTION_WORDS: &[&str] = &["host", "path", "net", "disk", "volume"];

impl Grammar<'_> {
    pub(super) fn connection(&mut self, st: &Statement) -> Result<ConnectionNode, Error> {
        let mut cursor = Cursor::after_keyword(st);
        if let Some(name) = cursor.optional_word() {
            let message = format!("the name `{}` of this connection is ignored", name.text);
            self.findings.warn(&name.span, message);
        }
        let mut connection = ConnectionNode {
            span: st.span().clone(),
            hosts: Vec::new(),
            paths: Vec::new(),
            net: Settings::default(),
            disk: Settings::default(),
            volumes: Vec::new(),
            seen: Vec::new(),
            running: RunningNode::default(),
        };
        for inner in &cursor.body()?.statements {
            if let Err(error) = self.connection_statement(&mut connection, inner) {
                self.findings.error(error);
            }
        }
        Ok(connection)
    }

    fn connection_statement(&mut self, connection: &mut ConnectionNode, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        match st.keyword() {
            "host" => connection.hosts.push(self.host_ref(st)?),
            "path" => self.path(connection, st)?,
            "net" => {
                once(&mut connection.seen, "net", st.span())?;
                self.settings(&mut connection.net, &[Group::Net], "net", cursor.body()?);
            }
            "disk" => {
                once(&mut connection.seen, "disk", st.span())?;
                self.settings(&mut connection.disk, &[Group::PeerDevice], "disk of a connection", cursor.body()?);
            }
            "volume" => self.peer_device(connection, st)?,
            "_peer_node_id" => {
                connection.running.peer_node_id = u8::try_from(cursor.integer("the node id", 31)?).ok();
            }
            "_cstate" => connection.running.cstate = Some(cursor.word("a connection state")?.text),
            "_is_standalone" => connection.running.standalone = true,
            _ => return Err(super::unknown_statement(st, "a connection", CONNECTION_WORDS)),
        }
        Ok(())
    }

    fn path(&mut self, connection: &mut ConnectionNode, st: &Statement) -> Result<(), Error> {
        let mut hosts = Vec::new();
        let (mut local, mut remote) = (None, None);
        for inner in &Cursor::after_keyword(st).body()?.statements {
            let mut cursor = Cursor::after_keyword(inner);
            match inner.keyword() {
                "host" => hosts.push(self.host_ref(inner)?),
                "_this_host" => local = Some(cursor.address()?),
                "_remote_host" => remote = Some(cursor.address()?),
                _ => return Err(super::unknown_statement(inner, "a path", &["host"])),
            }
        }
        match (local, remote) {
            (Some(local), Some(remote)) => connection.running.paths.push((local, remote)),
            _ => connection.paths.push(PathNode { span: st.span().clone(), hosts }),
        }
        Ok(())
    }

    /// `volume N { disk { } }` of a connection.
    fn peer_device(&mut self, connection: &mut ConnectionNode, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        let nr = u16::try_from(cursor.integer("the volume number", 65_535)?).expect("bounded above");
        if let Some((_, _, first)) = connection.volumes.iter().find(|(n, _, _)| *n == nr) {
            return Err(Error::new(ErrorKind::Duplicate, st.span(), format!("volume {nr} is there twice"))
                .related(first, "the first one is here"));
        }
        let mut settings = Settings::default();
        for inner in &cursor.body()?.statements {
            match inner.keyword() {
                "disk" => {
                    let body = Cursor::after_keyword(inner).body()?;
                    self.settings(&mut settings, &[Group::PeerDevice], "disk of a connection", body);
                }
                _ => return Err(super::unknown_statement(inner, "a volume of a connection", &["disk"])),
            }
        }
        connection.volumes.push((nr, settings, st.span().clone()));
        Ok(())
    }

    /// `host NAME [address A | port N] [via …]`
    fn host_ref(&mut self, st: &Statement) -> Result<HostRef, Error> {
        let mut cursor = Cursor::after_keyword(st);
        let name = if cursor.at_address() {
            // The name of a floating host is its address.
            Named { span: cursor.span().clone(), text: cursor.address()?.to_string() }
        } else {
            cursor.word("a host name")?
        };
        let mut host = HostRef { name, address: None, port: None, proxy: None, outside: None };
        if cursor.eat_keyword("address") {
            host.address = Some(cursor.address()?);
        } else if cursor.eat_keyword("port") {
            host.port = Some(cursor.port()?);
        }
        if !cursor.eat_keyword("via") {
            cursor.end()?;
        } else if cursor.eat_keyword("outside-address") {
            host.outside = Some(cursor.address()?);
            cursor.end()?;
        } else if cursor.eat_keyword("proxy") {
            host.proxy = Some(self.proxy(&mut cursor, st.span())?);
        } else {
            let message = "`proxy on HOST { … }` or `outside-address ADDRESS` must follow `via`";
            return Err(Error::new(ErrorKind::Syntax, cursor.span(), message));
        }
        Ok(host)
    }

    pub(super) fn mesh(&mut self, st: &Statement) -> Result<MeshNode, Error> {
        let cursor = Cursor::after_keyword(st);
        let mut mesh =
            MeshNode { span: st.span().clone(), hosts: Vec::new(), net: Settings::default(), seen: Vec::new() };
        for inner in &cursor.body()?.statements {
            let mut cursor = Cursor::after_keyword(inner);
            match inner.keyword() {
                "hosts" => {
                    once(&mut mesh.seen, "hosts", inner.span())?;
                    mesh.hosts = cursor.words("a host name")?;
                    cursor.end()?;
                }
                "net" => {
                    once(&mut mesh.seen, "net", inner.span())?;
                    self.settings(&mut mesh.net, &[Group::Net], "net", cursor.body()?);
                }
                _ => return Err(super::unknown_statement(inner, "a connection-mesh", &["hosts", "net"])),
            }
        }
        // One host has no connection, until another one is listed beside it.
        if mesh.hosts.is_empty() {
            return Err(Error::new(ErrorKind::Connection, st.span(), "a connection-mesh needs hosts")
                .help("write `hosts NAME NAME …;` into it"));
        }
        Ok(mesh)
    }
}
