#!/bin/sh
# Creates the secrets that compose.yaml mounts: passwords, an API key, certificates, and a key pair to
# issue licenses with. Existing files are kept, so you can run it again.
#
#   SECRETS  target directory (default: secrets/ beside this file)
#   TACO     the taco_llm command (default: the one in the license server's image)
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p "${SECRETS:=secrets}"
SECRETS=$(cd "$SECRETS" && pwd)
: "${TACO:=docker run --rm --network none --user $(id -u):$(id -g) --volume $SECRETS:$SECRETS
  ${REPOSITORY:-}taco-license-server:${VERSION:-0.1.0}}"

random() { head -c 24 /dev/urandom | od -A n -t x1 | tr -d ' \n'; }
taco() { $TACO "$@"; } # several words
issue() { test -e "$1.key" || taco certificates issue "$SECRETS" "$@"; }

cd "$SECRETS"
test -e redis_password || random > redis_password
test -e redis.conf || printf 'requirepass %s\n' "$(cat redis_password)" > redis.conf
test -e grafana_password || random > grafana_password
test -e keys.yaml || printf -- '- name: first\n  key: sk-%s\n' "$(random)" > keys.yaml

test -e ca.key || taco certificates init "$SECRETS"
for role in gateway scheduler worker draft-worker client; do
  issue "$role"
done
issue license-server --host localhost # for curl on this machine

test -e license.key || taco license keygen \
  --private-key "$SECRETS/license.key" --public-key "$SECRETS/license.pub"

# Compose mounts files with their owner and mode, and the images' users do not exist on this machine. So
# the mounted files are readable by all users, inside a directory that only its owner can open.
for file in *; do
  case $file in
    ca.key | license.key) ;;
    *) chmod 444 "$file" ;;
  esac
done
echo "The API key is in $SECRETS/keys.yaml, Grafana's password (user admin) in grafana_password."
echo "Keep ca.key and license.key: anyone who has them can make certificates and licenses."
