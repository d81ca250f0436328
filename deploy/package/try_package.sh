#!/usr/bin/env bash
# Tests the package in a bare Debian 12 made by debootstrap: typical mistakes of a new user with the message of each,
# installation, serving a model by two commands, an answer, upgrade, removal and purge, and a check for files left behind. Run by
# hand, as root; needs debootstrap and curl.
# usage: try_package.sh SLUICE.deb MODEL [ROOT] [LARGE]
#   MODEL: a folder or a .gguf   ROOT: kept for the next time [/var/tmp/sluice-bare]
#   LARGE: a model that takes seconds to pack, whose packing is interrupted
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,7p "$0"; exit 2; }
deb=$(realpath "$1") model=$(realpath "$2") base=${3:-/var/tmp/sluice-bare} large=${4:+$(realpath "$4")}
port=${PORT:-18099}

[ -x "$base/usr/bin/apt-get" ] || debootstrap --variant=minbase bookworm "$base" >/dev/null
root=$(mktemp -d "$base.XXXXXX")
cleanup() {
  [ -z "${served:-}" ] || kill -INT "$served" 2>/dev/null || true
  wait 2>/dev/null || true
  umount "$root/proc" "$root/dev" "$root/small" "$root/large" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap cleanup EXIT
cp -a "$base/." "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
# For hosts whose package downloads go through a proxy.
[ ! -f /etc/ssl/certs/ca-certificates.crt ] || install -D -t "$root/etc/ssl/certs" /etc/ssl/certs/ca-certificates.crt
cp -r "$model" "$root/root/model"
cp "$deb" "$root/root/sluice.deb"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
check() { # WHAT COMMAND...
  local what=$1
  shift
  if "$@" >/dev/null 2>&1; then echo "ok    $what"; else echo "WRONG $what"; failed=1; fi
}
refused() { # WHAT PATTERN COMMAND...: requires an error with a line that matches, and shows that line
  local what=$1 pattern=$2
  shift 2
  if inside timeout 60 "$@" >"$root/said" 2>&1; then echo "WRONG $what: no error" && failed=1
  elif line=$(tr '\r' '\n' <"$root/said" | grep -E "$pattern" | tail -n 1) && [ -n "$line" ]; then echo "ok    $what: $line"
  else echo "WRONG $what: $(tail -n 1 "$root/said")" && failed=1; fi
}
failed=0
pids=()
inside apt-get update -qq

began=$(date +%s.%N)
inside apt-get install -y -qq --no-install-recommends /root/sluice.deb >"$root/root/install.log" 2>&1 ||
  { tail -n 20 "$root/root/install.log"; exit 1; }
installed=$(date +%s.%N)
inside sluice serve --model /root/model --http 127.0.0.1:"$port" 2>"$root/root/serve.log" &
served=$!
for _ in $(seq 600); do
  curl -sf "http://127.0.0.1:$port/health" >/dev/null && break
  kill -0 "$served" || { cat "$root/root/serve.log"; exit 1; }
  sleep 0.1
done
ready=$(date +%s.%N)
until grep -q "^  try  " "$root/root/serve.log"; do sleep 0.05; done
tr '\r' '\n' <"$root/root/serve.log"
answer=$(bash -c "$(sed -n 's/^  try     //p' "$root/root/serve.log")" 2>/dev/null)
answered=$(date +%s.%N)
check "the curl line answers" grep -q completion_tokens <<<"$answer"
check "the page is there" grep -q '<title>Sluice' <(curl -s "http://127.0.0.1:$port/")
kill -INT "$(pgrep -P "$served" -x sluice || echo "$served")"
wait "$served" || true
served=
printf 'apt install %.1f s, sluice serve to ready %.1f s, answer %.1f s\n' "$(echo "$installed-$began" | bc)" \
  "$(echo "$ready-$installed" | bc)" "$(echo "$answered-$ready" | bc)"

ask=(sluice run --prompt hello -n 4)
refused "no model at all" 'model|pack' "${ask[@]}"
refused "no model of that name" NOT_FOUND "${ask[@]}" --model /root/nothing.gguf
refused "a text file as a model" model "${ask[@]}" --model /etc/passwd
mkdir "$root/small"
mount -t tmpfs -o size=4m tmpfs "$root/small"
refused "disk too small" 'space|free' env SLUICE_CACHE_DIR=/small "${ask[@]}" --model /root/model
check "and nothing is left there" test -z "$(find "$root/small" -size +64k)"
refused "memory too small" 'below its working minimum' "${ask[@]}" --model /root/model --dram-budget 1MiB

mkdir "$root/root/cache"
in_cache() { inside env SLUICE_CACHE_DIR=/root/cache sluice "$@"; }
packed() { find "$root/root/cache" -size +64k -name experts.bin | wc -l; }
if [ -n "$large" ]; then
  mkdir "$root/large"
  mount --bind "$(dirname "$large")" "$root/large"
  for signal in INT KILL; do
    in_cache run --model "/large/$(basename "$large")" --token-ids 1,2,3 -n 2 >"$root/said" 2>&1 &
    while [ "$(du -sm "$root/root/cache" | cut -f1)" -le 100 ] && kill -0 $!; do sleep 0.05; done
    kill -"$signal" "$(pgrep -P $!)" || true
    wait $! || echo "      packing ended by SIG$signal: $(tr '\r' '\n' <"$root/said" | tail -n 1)"
  done
  umount "$root/large"
fi
before=$(packed)
for one in first second; do
  in_cache run --model /root/model --prompt hello -n 4 >"$root/said.$one" 2>&1 &
  pids+=($!)
done
wait "${pids[@]}" || true
for one in first second; do
  check "two at once, the $one: an answer" grep -q "ended by" "$root/said.$one"
  tr '\r' '\n' <"$root/said.$one" | grep "^sluice" | cut -c1-150 | sed 's/^/      /'
done
check "one pack came of it" test "$(packed)" = $((before + 1))

check "users weightd and inferd" inside getent passwd weightd inferd
check "group sluice" inside getent group sluice
check "units" test -e "$root/usr/lib/systemd/system/inferd.service"
check "man page" test -e "$root/usr/share/man/man1/sluice.1.gz"
check "completion" test -e "$root/usr/share/bash-completion/completions/sluice"
check "configuration passes" inside weightd --config /etc/sluice/weightd.toml --check-config --pack /root/.cache/sluice
echo '# mine' >>"$root/etc/sluice/inferd.toml"
mkdir "$root/var/lib/sluice/packs/mine"
touch "$root/var/lib/sluice/packs/mine/manifest.json"
inside apt-get install -y -qq --reinstall /root/sluice.deb >/dev/null 2>&1
check "an upgrade keeps the configuration" grep -q '# mine' "$root/etc/sluice/inferd.toml"
check "an upgrade keeps packs" test -e "$root/var/lib/sluice/packs/mine/manifest.json"
inside apt-get remove -y -qq sluice >/dev/null 2>&1
check "removal takes the programs" test ! -e "$root/usr/bin/sluice"
check "removal keeps the configuration" grep -q '# mine' "$root/etc/sluice/inferd.toml"
inside apt-get purge -y -qq sluice >/dev/null 2>&1
check "purging takes the configuration" test ! -e "$root/etc/sluice/inferd.toml"
check "purging keeps packs" test -e "$root/var/lib/sluice/packs/mine/manifest.json"
exit "$failed"
