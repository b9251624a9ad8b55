#!/usr/bin/env bash
# Guess: constants of NVML's C interface keep their numbers within a minor release of CUDA, so that a monitor which was
# compiled against nvml.h of CUDA 13.0 reads the same counters under every later driver of it.
# What happens: between two updates of CUDA 13.0 (wheels 13.0.39 and 13.0.87) the cumulative counters of thermal slowdown
# and power brake move from 251–253 to 269–271, and 251–253 become settings of power smoothing. A program that was
# compiled against the first reads "power smoothing is enabled" as nanoseconds of thermal slowdown. nvidia-ml-py makes
# the same step between 13.580.65 and 13.580.82. No error is raised: both numbers are valid fields.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
header() { find "$folder/$1" -name nvml.h; }
number() { awk -v name="$2" '$1 == "#define" && $2 == name { print $3 }' "$(header "$1")"; }

for version in 13.0.39 13.0.87; do
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$version" "nvidia-nvml-dev==$version" 2>/dev/null
done
for version in 13.580.65 13.580.82; do
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/$version" "nvidia-ml-py==$version" 2>/dev/null
done

heat=NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
smoothing=NVML_FI_PWR_SMOOTHING_ENABLED
found=""
for version in 13.0.39 13.0.87; do
  found+="nvml.h $version: $heat $(number "$version" "$heat"), $smoothing $(number "$version" "$smoothing")"$'\n'
done
for version in 13.580.65 13.580.82; do
  found+="nvidia-ml-py $version: $(PYTHONPATH="$folder/$version" python3 -c "
import pynvml
print('$heat', pynvml.$heat, '$smoothing', pynvml.$smoothing, sep=' ', end='')")"$'\n'
done
printf '%s' "$found"

expected="nvml.h 13.0.39: $heat 251, $smoothing 256
nvml.h 13.0.87: $heat 269, $smoothing 251
nvidia-ml-py 13.580.65: $heat 251 $smoothing 256
nvidia-ml-py 13.580.82: $heat 269 $smoothing 251"
[[ $found == "$expected"$'\n' ]] || { echo "changed: see above" >&2; exit 1; }
echo "as described"
