#!/usr/bin/python3
"""Writes what the programs urbd and urbd-watch are made of, in CycloneDX's format (1.5, JSON).

    sbom.py --version VERSION --output FILE

Named are the crates that are linked in, and those that only write code for them (scope: excluded), as `cargo metadata` says for this
machine and Linux, with the checksums of Cargo.lock.  The same commit gives the same bytes; times are those of SOURCE_DATE_EPOCH."""

import argparse
import json
import os
import platform
import subprocess
import time
import tomllib
import uuid

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
ROOTS = ("urbd", "urbd-watch")


def cargo(*argv):
    argv = [os.environ.get("CARGO", "cargo"), *argv, "--locked"]
    return subprocess.run(argv, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata():
    """What cargo knows of each crate. It says there what tests switch on, too: what is not in the tree without them is left out."""
    target = f"{platform.machine()}-unknown-linux-musl"
    data = json.loads(cargo("metadata", "--format-version=1", "--filter-platform", target))
    roots = [word for root in ROOTS for word in ("-p", root)]
    tree = cargo("tree", *roots, "--edges=normal", "--prefix=none", "--format={p}", "--target", target)
    built = {tuple(line.replace(" v", " ").split()[:2]) for line in tree.splitlines() if line.strip()}
    data["packages"] = [p for p in data["packages"] if (p["name"], p["version"]) in built]
    return data


def checksums():
    with open(os.path.join(TOP, "Cargo.lock"), "rb") as f:
        return {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(f)["package"]}


def only_writes_code(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reached(packages, nodes):
    """The crates that the roots need, by id: what each needs, and whether it is linked in."""
    needs, linked = {}, set()

    def visit(node, is_linked):
        is_linked = is_linked and not only_writes_code(packages[node])
        if node in needs and (node in linked or not is_linked):
            return
        if is_linked:
            linked.add(node)
        # No tests, no build scripts: their crates are not in the program.
        wanted = [d["pkg"] for d in nodes[node]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
        wanted = [other for other in wanted if other in packages]
        needs[node] = sorted(wanted)
        for other in wanted:
            visit(other, is_linked)

    for node, package in packages.items():
        if package["name"] in ROOTS and package["source"] is None:
            visit(node, True)
    return needs, linked


def bom(version):
    data, sums = metadata(), checksums()
    packages = {p["id"]: p for p in data["packages"]}
    nodes = {n["id"]: n for n in data["resolve"]["nodes"]}
    needs, linked = reached(packages, nodes)

    def purl(node):
        return f"pkg:cargo/{packages[node]['name']}@{packages[node]['version']}"

    def component(node):
        p = packages[node]
        found = {"type": "library", "bom-ref": purl(node), "name": p["name"], "version": p["version"], "purl": purl(node),
                 "scope": "required" if node in linked else "excluded",
                 "licenses": [{"expression": p["license"].replace("/", " OR ")}]}
        if sums[p["name"], p["version"]]:
            found["hashes"] = [{"alg": "SHA-256", "content": sums[p["name"], p["version"]]}]
        return found

    order = sorted(needs, key=purl)
    made = "pkg:generic/urbd@" + version
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    roots = [purl(node) for node in order if packages[node]["name"] in ROOTS]
    text = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {"type": "application", "bom-ref": made, "name": "urbd", "version": version, "purl": made,
                          "licenses": [{"expression": "Apache-2.0"}]},
        },
        "components": [component(node) for node in order],
        "dependencies": [{"ref": made, "dependsOn": roots}] +
                        [{"ref": purl(node), "dependsOn": sorted({purl(n) for n in needs[node]})} for node in order],
    }
    text["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(text, sort_keys=True))}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("version", "output"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with open(args.output, "w") as f:
        json.dump(bom(args.version), f, indent=1)
        f.write("\n")
    print(args.output)


if __name__ == "__main__":
    main()
