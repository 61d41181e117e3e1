#!/usr/bin/env bash
# Takes all training figures on CPUs, in about half an hour, and writes the tables of
# docs/train/figures.md. Use a machine without other load. With --smoke nothing is saved: a short
# run of each script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${PYTHON:-.venv/bin/python}"

run() {
  echo "== bench.train.$*"
  local begun=$SECONDS
  "$python" -m "bench.train.$@"
  echo "== $((SECONDS - begun)) s"
}

if [[ "${1:-}" == --smoke ]]; then
  run collectives --rounds 2 --links one-host-2
  run rows --rounds 2 --links one-host
  run cost_model --rounds 2 --links 1gbit loopback
  run host_cost --steps 2
  run synthetic --models transformer --batch-size 2 --num-iters 2
  run links --model transformer --batch-size 4 --rounds 2 --shares 0.44
  run time_to_loss --shares 0.44 --steps 20 --block 10
  exit
fi
run collectives --links one-host one-host-2 200mbit 1gbit --save
run rows --save
run cost_model --save
run host_cost --save
run links --save
run time_to_loss --save
run synthetic --csv /tmp/train_synthetic.csv --save
"$python" -m bench.report.tables
"$python" -m bench.pictures.train_chart
