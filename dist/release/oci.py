#!/usr/bin/python3
"""Writes an OCI image (an image layout in a tar file, which podman, skopeo and containerd load) with one program and nothing else.

    oci.py --program FILE --version VERSION --output FILE

The program is /urbd; it must need no libraries.  The same program gives the same bytes; times are those of SOURCE_DATE_EPOCH."""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import time
import tarfile

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}
KIND = "application/vnd.oci.image."


def packed(files):
    """A tar file: {name: (mode, bytes)}, in that order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (mode, data) in files.items():
            info = tarfile.TarInfo(name)
            info.mode, info.size, info.mtime = mode, len(data), EPOCH
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def image(program, version):
    """The files of the layout."""
    blobs = {}

    def blob(kind, data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (0o644, data)
        return {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(data)}

    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    layer = packed({"urbd": (0o755, program)})
    about = {"org.opencontainers.image.title": "urbd", "org.opencontainers.image.version": version,
             "org.opencontainers.image.licenses": "Apache-2.0",
             "org.opencontainers.image.description": "network RAID-1 that speaks DRBD's protocol"}
    config = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)), "architecture": architecture, "os": "linux",
        "config": {"Entrypoint": ["/urbd"], "Cmd": ["help"], "Env": ["PATH=/"], "WorkingDir": "/", "Labels": about},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created_by": "dist/release/oci.py"}],
    }
    manifest = {
        "schemaVersion": 2, "mediaType": KIND + "manifest.v1+json", "annotations": about,
        "config": blob("config.v1+json", as_json(config)),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))],
    }
    entry = {**blob("manifest.v1+json", as_json(manifest)), "platform": {"architecture": architecture, "os": "linux"},
             "annotations": {"org.opencontainers.image.ref.name": version}}
    index = {"schemaVersion": 2, "mediaType": KIND + "index.v1+json", "manifests": [entry]}
    return {"oci-layout": (0o644, as_json({"imageLayoutVersion": "1.0.0"})), "index.json": (0o644, as_json(index)),
            **dict(sorted(blobs.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("program", "version", "output"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with open(args.program, "rb") as f:
        files = image(f.read(), args.version)
    with open(args.output, "wb") as f:
        f.write(packed(files))
    print(args.output)


if __name__ == "__main__":
    main()
