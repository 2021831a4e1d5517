//! Access to the golden metadata in `vectors/metadata` (see the README there).

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use units::ByteLen;
use urbd_meta::{BLOCK_LEN, Block, Found, Layout, MetaDisk};

/// One image: the bytes of a metadata device from `base` on.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) base: u64,
    pub(crate) device: ByteLen,
    pub(crate) kind: MetaDisk,
    pub(crate) bytes: Vec<u8>,
    pub made_by: String,
}

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors/metadata").join(name)
}

pub(crate) fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The decompressed bytes of an `.xz` file.
pub(crate) fn unpack(name: &str) -> Vec<u8> {
    let out = Command::new("xz").arg("-dc").arg(path(name)).output().expect("xz is installed");
    assert!(out.status.success(), "xz -dc {name}");
    out.stdout
}

pub(crate) fn manifest() -> Vec<Value> {
    serde_json::from_str::<Value>(&text("manifest.json")).unwrap().as_array().unwrap().clone()
}

/// All images whose file name satisfies `wanted`; never none.
pub(crate) fn images(wanted: impl Fn(&str) -> bool) -> Vec<Image> {
    let found: Vec<Image> = manifest()
        .iter()
        .filter(|e| e["base_offset"].is_u64() && e["meta_disk"] != "-")
        .filter(|e| wanted(e["file"].as_str().unwrap()))
        .map(load)
        .collect();
    assert!(!found.is_empty());
    found
}

pub(crate) fn image(name: &str) -> Image {
    images(|n| n == name).remove(0)
}

fn load(entry: &Value) -> Image {
    let name = entry["file"].as_str().unwrap();
    let bytes = unpack(name);
    assert_eq!(bytes.len() as u64, entry["raw_bytes"].as_u64().unwrap(), "{name}");
    Image {
        name: name.to_owned(),
        base: entry["base_offset"].as_u64().unwrap(),
        device: ByteLen(entry["device_bytes"].as_u64().unwrap()),
        kind: kind(entry["meta_disk"].as_str().unwrap()),
        bytes,
        made_by: entry["made_by"].as_str().unwrap_or("").to_owned(),
    }
}

fn kind(text: &str) -> MetaDisk {
    match text {
        "internal" => MetaDisk::Internal,
        "flex-external" => MetaDisk::FlexExternal,
        n => MetaDisk::Indexed(n.parse().unwrap()),
    }
}

impl Image {
    /// `len` bytes at position `at` of the device; zero outside the image.
    pub(crate) fn read(&self, at: ByteLen, len: u64) -> Vec<u8> {
        let byte = |p: u64| p.checked_sub(self.base).and_then(|i| self.bytes.get(i as usize)).copied().unwrap_or(0);
        (at.0..at.0 + len).map(byte).collect()
    }

    pub(crate) fn block(&self, at: ByteLen) -> Box<Block> {
        Box::new(self.read(at, BLOCK_LEN as u64).try_into().unwrap())
    }

    pub(crate) fn superblock_bytes(&self) -> Box<Block> {
        self.block(urbd_meta::layout::superblock_at(self.kind, self.device).unwrap())
    }

    pub(crate) fn found(&self) -> Found {
        urbd_meta::find::check(self.kind, self.device, &self.superblock_bytes())
            .unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    pub(crate) fn ring(&self, layout: &Layout) -> Vec<u8> {
        self.read(layout.al_at(), layout.geometry().al().bytes().0)
    }

    pub(crate) fn bitmap(&self, found: &Found) -> Vec<u8> {
        let bytes = found.layout.geometry().bitmap_bytes(found.superblock.effective_size);
        self.read(found.layout.bitmap_at(), bytes)
    }

    pub(crate) fn write(&mut self, at: ByteLen, block: &Block) {
        let at = (at.0 - self.base) as usize;
        self.bytes[at..at + BLOCK_LEN].copy_from_slice(block);
    }

    /// Panics at the first differing byte.
    #[track_caller]
    pub(crate) fn assert_bytes(&self, actual: &[u8]) {
        assert_eq!(self.bytes.len(), actual.len(), "{}", self.name);
        if let Some(i) = (0..actual.len()).find(|&i| self.bytes[i] != actual[i]) {
            panic!(
                "{}: at device byte {} (image byte {i}): expected {:02x?}, got {:02x?}",
                self.name,
                self.base + i as u64,
                &self.bytes[i..(i + 16).min(actual.len())],
                &actual[i..(i + 16).min(actual.len())]
            );
        }
    }
}
