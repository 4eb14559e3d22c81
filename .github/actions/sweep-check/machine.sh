#!/usr/bin/env bash
# What a measurement depends on and no record can change, as Markdown: each GPU with its driver, clocks, limits and
# throttle reasons, and the memory of each process on it; the processor where there is no GPU. `machine.sh "after the sweep"`
# names it. The summary is public: what others run on the machine is counted, and not named.
set -euo pipefail
echo "### Machine, $1"
echo '```'
grep -m1 'model name' /proc/cpuinfo || true
echo "cores $(nproc), load $(cut -d' ' -f1-3 /proc/loadavg)"
cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor 2>/dev/null | sed 's/^/governor /' || true
if command -v nvidia-smi >/dev/null; then
  query() { nvidia-smi --query-gpu="$1" --format=csv 2>/dev/null || true; }
  query index,name,driver_version,pstate,persistence_mode
  query index,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,temperature.gpu
  # The name changed with driver 535.
  reasons=$(query index,clocks_event_reasons.active)
  echo "${reasons:-$(query index,clocks_throttle_reasons.active)}"
  nvidia-smi -q -d TEMPERATURE 2>/dev/null | grep -E 'T.Limit|Slowdown|Shutdown|Max Operating' || true
  echo "processes on the GPUs, by their memory:"
  nvidia-smi --query-compute-apps=used_memory --format=csv,noheader 2>/dev/null || true
else
  echo "no NVIDIA GPU"
fi
echo '```'
