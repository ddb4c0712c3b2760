# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a real API server that speaks HTTP on both sides, for faults of single requests.

Each request is handed to `fault(method, path, body)`, which says what becomes of it:

    None        it is passed on, as is its answer
    "swallow"   it is passed on, and the connection is closed without its answer
    "drop"      the connection is closed, the server never hears of it
    "stall"     it is passed on, and nothing is ever answered
    a number    that status is answered with a Status object, the server never hears of it; also
                (number, {header: value…}, message)
    an object   is the answer, as JSON; the server never hears of it

TLS on the client's side needs `certificate` and its `key` (PEM files); connections to the server use `ca`. Upgrades are not
passed on.
"""

import http.client
import http.server
import json
import ssl
import threading
import time

REASONS = {401: "Unauthorized", 403: "Forbidden", 409: "AlreadyExists", 429: "TooManyRequests", 500: "InternalError",
           503: "ServiceUnavailable", 504: "Timeout"}
PASSED = ("authorization", "content-type", "accept", "user-agent")


class ApiProxy:
    def __init__(self, server, ca, certificate, key=None, fault=None):
        self.fault = fault or (lambda method, path, body: None)
        self.seen = []
        self.lock = threading.Lock()
        host, port = server.rsplit(":", 1)
        context = ssl.create_default_context(cafile=ca)
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except (ConnectionError, ssl.SSLError, TimeoutError):
                    self.close_connection = True

            def answer(self, status, headers, body):
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def refuse(self, code, headers=None, message="made to fail"):
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code,
                          "reason": REASONS.get(code, "")}
                self.answer(code, [("Content-Type", "application/json"), *(headers or {}).items()], json.dumps(status).encode())

            def forward(self, body):
                upstream = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() in PASSED}
                upstream.request(self.command, self.path, body, headers)
                return upstream.getresponse()

            def stream(self, response):
                self.send_response(response.status)
                self.send_header("Content-Type", response.getheader("Content-Type", "text/plain"))
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while piece := response.read1(65536):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def do_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with proxy.lock:
                    proxy.seen.append((self.command, self.path))
                    verdict = proxy.fault(self.command, self.path, body)
                if isinstance(verdict, (int, tuple)):
                    return self.refuse(*(verdict if isinstance(verdict, tuple) else (verdict,)))
                if isinstance(verdict, dict):
                    return self.answer(200, [("Content-Type", "application/json")], json.dumps(verdict).encode())
                if verdict == "drop":
                    self.close_connection = True
                    return None
                response = self.forward(body)
                if verdict == "stall":
                    time.sleep(600)
                if verdict == "swallow":
                    response.read()
                    self.close_connection = True
                    return None
                if "watch=" in self.path or "follow=" in self.path:
                    return self.stream(response)
                return self.answer(response.status, [("Content-Type", response.getheader("Content-Type", ""))], response.read())

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.httpd = Server(("127.0.0.1", 0), Handler)
        inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        inside.load_cert_chain(certificate, key)
        self.httpd.socket = inside.wrap_socket(self.httpd.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"127.0.0.1:{self.httpd.server_address[1]}"
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
