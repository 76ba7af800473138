"""A test service with sales: it answers the first two requests for every day with 503."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SALES = {
    "2026-01-01": [{"item": "Apple", "count": 3}, {"item": "pear", "count": 1}],
    "2026-01-02": [{"item": "apple", "count": 2}, {"item": "APPLE", "count": 5}],
}
requests: dict[str, int] = {}


class Sales(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        day = self.path.rpartition("/")[2]
        requests[day] = requests.get(day, 0) + 1
        if day not in SALES:
            self.send_error(404)
        elif requests[day] <= 2:
            self.send_response(503)
            self.send_header("Retry-After", "0.1")  # a real service would send whole seconds
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(SALES[day]).encode())


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8765
    with ThreadingHTTPServer(("127.0.0.1", port), Sales) as server:
        print(f"listening on {port}", flush=True)
        server.serve_forever()
