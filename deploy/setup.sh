#!/bin/sh
# Create what compose.yaml needs: the keys of a server and four nodes, and folders for their state.
#
#     ./setup.sh [NAME]        NAME: the name by which nodes on other machines reach the server
#
# With FEDSAT=fedsat, the keys are created by a fedsat that is installed here, instead of the image's.
set -eu
cd "$(dirname "$0")"
if [ -e keys/server ]; then
    echo "keys/server exists already; nothing is replaced" >&2
    exit 1
fi
mkdir -p keys runs state/server state/node-0 state/node-1 state/node-2 state/node-3
export FEDSAT_USER="$(id -u):$(id -g)" SERVER_NAME="${1:-localhost}"
echo "FEDSAT_USER=$FEDSAT_USER" >.env # compose reads this file
if [ -n "${FEDSAT:-}" ]; then
    $FEDSAT keys keys --nodes 4 --host "server,$SERVER_NAME"
else
    docker compose run --build --rm keys
fi
