#!/bin/bash
# What the demonstrations share: `hosts` names the nodes; everything lives in one temporary directory and is gone at the
# end, whatever happens. Read by `run` and `three`.
urbd=${URBD_BIN:-$here/target/release/urbd}
dir=$(mktemp -d "${TMPDIR:-/tmp}/urbd-demo.XXXXXX")
export PATH=$PATH:/usr/sbin:/sbin
began=$(date +%s%N)
declare -A pid
mnt=$dir/mnt mounted=
bold=$(tput bold 2>/dev/null || true) plain=$(tput sgr0 2>/dev/null || true)

now() { echo $((($(date +%s%N) - began) / 1000000)); } # milliseconds since the start
seconds() { if [ "$1" -lt 100 ]; then printf '%d ms' "$1"; else printf '%d.%01d s' $(($1 / 1000)) $(($1 % 1000 / 100)); fi; }
say() { printf '%s%7s  %s%s\n' "$bold" "$(seconds "$(now)")" "$*" "$plain"; }
fail() { printf '\ndemo: %s\n' "$*" >&2; tail -n 15 "$dir"/*/log >&2 2>/dev/null; exit 1; }

node() { # node NAME VERB...: the command line as that machine's administrator
  local name=$1
  shift
  URBD_CONF=$dir/urbd.conf URBD_NODE=$name URBD_RUN_DIR=$dir/$name URBD_DEV_DIR=$dir/$name/dev "$urbd" "$@"
}
must() { node "$@" >"$dir/out" 2>&1 || fail "\`urbd ${*:2}\` on $1: $(cat "$dir/out")"; }
boot() { # the node's process, as a service manager would run it
  URBD_CONF=$dir/urbd.conf URBD_NODE=$1 URBD_RUN_DIR=$dir/$1 URBD_DEV_DIR=$dir/$1/dev "$urbd" run r0 >>"$dir/$1/log" 2>&1 &
  pid[$1]=$!
  disown
  for _ in $(seq 200); do
    node "$1" role r0 >/dev/null 2>&1 && return
    kill -0 "${pid[$1]}" 2>/dev/null || fail "$1 did not start"
    sleep 0.05
  done
  fail "$1 does not answer"
}
field() { node "$1" status --json r0 2>/dev/null | tr -d ' "' | tr ',{}' '\n' | sed -n "s/^$2://p" | head -1; }
wait_for() { # wait_for SECONDS COMMAND...
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.1
  done
}
keeper() { # the process that holds a node's device when nobody serves it
  local p
  for p in /proc/[0-9]*; do
    { tr '\0' ' ' <"$p/cmdline" | grep -q ' keep r0 $' && tr '\0' '\n' <"$p/environ" | grep -qx "URBD_RUN_DIR=$dir/$1"; } 2>/dev/null &&
      echo "${p#/proc/}"
  done
}
power_off() { # power_off NAME: all of that machine at once
  kill -9 "${pid[$1]}" $(keeper "$1")
}
gone() { while kill -0 "${pid[$1]}" 2>/dev/null; do sleep 0.02; done; }
clean() {
  set +e
  [ -n "$mounted" ] && umount "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null
  for n in "${hosts[@]}"; do node "$n" down --force r0 >/dev/null 2>&1; done
  sleep 0.2
  for n in "${hosts[@]}"; do [ -n "${pid[$n]:-}" ] && kill -9 "${pid[$n]}" 2>/dev/null; done
  wait 2>/dev/null
  rm -rf "$dir"
}
trap clean EXIT
trap 'exit 130' INT TERM


device() { node "$1" sh-dev r0; }
uri() { node "$1" nbd-uri r0/0; }
has_device() { # has_device NAME: is a file system on it possible?
  [ "$(id -u)" = 0 ] && [ "${URBD_DEMO:-}" != nbd ] && command -v mkfs.ext4 >/dev/null && wait_for 5 test -b "$(device "$1")"
}
clients() { command -v nbdcopy >/dev/null || fail "without root and a device an NBD client is needed: install libnbd-bin"; }
make_ext4() { # make_ext4 NAME: mounted
  local dev
  dev=$(device "$1")
  say "an ext4 file system on $dev ($(readlink -f "$dev"))"
  mkfs.ext4 -q -F -E nodiscard "$dev" 2>"$dir/out" || fail "mkfs.ext4: $(cat "$dir/out")"
  mount "$dev" "$mnt" || fail "cannot mount $dev"
  mounted=1
}
mount_on() { # mount_on NAME
  wait_for 5 test -b "$(device "$1")" || fail "no device on $1"
  mount "$(device "$1")" "$mnt" || fail "cannot mount on $1"
  mounted=1
}
all_down() { # all_down FIRST: that one is Primary, and the device is unmounted. The disks are the same, up to what FIRST says.
  local n bytes
  cd "$here" || exit
  # It is unmounted and synced; only another mount namespace that copied the mount could still have it open.
  wait_for 3 node "$1" secondary r0 >"$dir/out" 2>&1 || must "$1" secondary --force r0
  bytes=$(node "$1" status --json r0 | tr -d ' "' | tr ',{}' '\n' | sed -n 's/^size://p' | head -1)
  for n in "${hosts[@]}"; do must "$n" down r0; done
  gone "$1"
  for n in "${hosts[@]}"; do
    cmp -n $((bytes * 1024)) "$dir/$1.disk" "$dir/$n.disk" || fail "the disks of $1 and $n differ"
  done
  identical_mib=$((bytes / 1024))
}

[ -x "$urbd" ] || fail "no program at $urbd: run \`make demo\`"
port=$((20000 + RANDOM % 20000))
mkdir "$mnt"
for n in "${hosts[@]}"; do mkdir "$dir/$n" && truncate -s "${size_mib}M" "$dir/$n.disk"; done
