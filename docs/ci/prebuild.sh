#!/usr/bin/env bash
# Build the artifacts of one model, check them, sign them, and push them.
#
#   MODEL     the model; its config is models/MODEL.yaml
#   TARGETS   CPU levels; the first must run on this machine      [x86_64_v3 aarch64]
#   REPORTS   folder of the JUnit files                           [reports]
#   LEVELS    levels of `aotc verify` for the first target        [all]
#   CACHE     registry reference of earlier pushes; what it has is not compiled again
#   REF       registry reference to push to                       [none: nothing is pushed]
#   KEY       file of the private key to sign with                [none: nothing is signed]
#   POLICY    policy that what is fetched and pushed must satisfy [none]
set -euo pipefail
: "${MODEL:?the model to build}"
read -ra targets <<<"${TARGETS:-x86_64_v3 aarch64}"
read -ra levels <<<"${LEVELS:-integrity contract equivalence numerics}"
reports=${REPORTS:-reports}
mkdir -p "$reports"
each_target=("${targets[@]/#/--target=}")

# A registry that has nothing yet, or is away, costs time only; and what it says is checked: --locked
# fails for what is not in aotc.lock.
fetch=()
if [[ -n ${CACHE:-} ]]; then
    fetch=(--from-registry "$CACHE" ${POLICY:+--policy "$POLICY"})
fi

# Compile what is not there, and fail where the result is not the one in aotc.lock.
aotc build "$MODEL" "${each_target[@]}" --locked "${fetch[@]}"
aotc build "$MODEL" "${each_target[@]}" --check

aotc verify "$MODEL" --target "${targets[0]}" "${levels[@]/#/--level=}" \
    --junit "$reports/$MODEL-${targets[0]}.xml"
for target in "${targets[@]:1}"; do
    aotc verify "$MODEL" --target "$target" --level integrity --level contract --level equivalence \
        --junit "$reports/$MODEL-$target.xml"
done

if [[ -n ${KEY:-} ]]; then
    aotc sign "$MODEL" --key "$KEY" "${each_target[@]}"
fi
if [[ -n ${POLICY:-} && -n ${REF:-} ]]; then
    for target in "${targets[@]}"; do
        aotc verify "$MODEL" --target "$target" --level integrity --policy "$POLICY" \
            --junit "$reports/$MODEL-$target-policy.xml"
    done
fi
# The digest that it prints is what a deployment names. The tag has this model as it is now, and
# nothing that it has not any more.
if [[ -n ${REF:-} ]]; then
    aotc push "$MODEL" "$REF" "${each_target[@]}" --replace | tee "$reports/$MODEL.digest"
fi
