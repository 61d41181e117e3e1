#!/usr/bin/env bash
# Server and client in one: bash taco_bench.sh taco_llm
# Starts the server, measures it as soon as it is ready, and stops it.
set -euo pipefail
scripts=$(dirname "$0")
source "$scripts/taco_bench_settings.sh"

is_ready() {
    (
        exec 3<>"/dev/tcp/$host/$port"
        printf 'GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$host" >&3
        read -r status <&3
        [[ $status == *" 200 "* ]]
    ) 2>/dev/null
}

bash "$scripts/taco_bench_server.sh" "$backend" &
server=$!
trap 'kill "$server" 2>/dev/null && wait "$server" || true' EXIT
until is_ready; do
    if ! kill -0 "$server" 2>/dev/null; then
        echo "The server did not start." >&2
        exit 1
    fi
    sleep 0.2
done
bash "$scripts/taco_bench_client.sh" "$backend" "${@:2}"
