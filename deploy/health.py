"""Exit with 0 if the server's gate answers, and the SuperLink behind it:

    python health.py HOST:PORT AUTHORITY

`AUTHORITY` is the file `ca.crt`. Both the server and its nodes run this, so a node that cannot reach the server is not
healthy either.
"""

from __future__ import annotations

import http.client
import ssl
import sys


def main() -> None:
    """Ask once, without a proxy."""
    address, authority = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection(address, timeout=4, context=context)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except OSError as error:
        sys.exit(f"{address} cannot be reached: {error}")
    if status != http.client.OK:
        sys.exit(f"{address} answers with status {status}")


if __name__ == "__main__":
    main()
