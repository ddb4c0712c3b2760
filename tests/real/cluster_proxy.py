#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ports of pods as URLs in a real cluster: requests, WebSockets, JupyterLab whose kernel lives on while tunnels are reset.
DLRUN_PROXY_RESETS: how often (4; DLRUN_TESTS=all: 10)."""

import contextlib
import os
import time

import jupyter
from harness import *  # noqa: F403
from kubesite import site
from proxysite import SERVER, proxy
from registries import FaultProxy

RESETS = int(os.environ.get("DLRUN_PROXY_RESETS", "10" if ALL else "4"))


def behind_wire(w, s):
    """A proxy before the API server, whose connections can be cut."""
    host, port = s.cluster.address.rsplit(":", 1)
    wire = FaultProxy((host, int(port)))
    return wire


def use_wire(w, s, wire):
    s.cluster.kubeconfig(s.user, w.env["KUBECONFIG"], namespace=s.namespace, server=wire.address)


def test_a_pod(w):
    with site(w, files={"server.py": SERVER}, results={"emptyDir": True}) as s, behind_wire(w, s) as wire:
        use_wire(w, s, wire)
        run = s.submit("--grace", "1s", "--retries", "2", "-e", "PORT=7000", "--", "python3", "server.py")
        with proxy(w) as p:
            host = f"7000.{run}.localhost"
            answer = p.get(host)
            assert answer.status in (200, 503), answer
            wait_for(lambda: p.get(host, "/x").status == 200, "the server", 90)
            assert p.get(host, "/x").text.startswith("one /x "), p.said.read_text()
            ws = p.websocket(host)
            assert ws.ask(b"a") == b"one:a"
            begin = time.monotonic()
            for _ in range(50):
                assert p.get(host).status == 200
            print(f"proxy: a request to a pod takes {(time.monotonic() - begin) * 20:.1f} ms")
            wire.cut_all("rst")
            assert ws.receive() is None
            wait_for(lambda: p.get(host).status == 200, "an answer after a reset", 20)
            wait_for(lambda: (a := p.get(f"7999.{run}.localhost")).status == 502 and "nothing listens on port 7999" in a.text,
                     "what is said of a port that is not open", 20)
            page = p.get(f"{run}.localhost")
            assert page.status == 200 and "port 7000" in page.text, page
            # Another pod takes over.
            s.cluster.delete("Pod", s.cluster.started(s.namespace, run), s.namespace)

            def is_next():
                with contextlib.suppress(OSError):
                    answer = p.get(host)
                    return answer.status == 200 and answer.text.startswith("one")
            wait_for(is_next, "the next pod", 90)
            s.cancel(run)
            wait_for(lambda: p.get(host).status == 503, "its end", 60)


WRITE = "import os\nopen(os.environ['DLRUN_OUTPUT_DIR'] + '/a.txt', 'w').write('a' * 100000)\nprint('written')\n"


def test_storage_of_an_ended_run(w):
    with site(w, files={"w.py": WRITE}) as s:
        s.cluster.volume(s.namespace, "results")
        s.configure(results={"pvc": "results"})
        run = s.submit("--", "python3", "w.py")
        assert s.ended(run)["state"] == "succeeded", s.why(run)

        def pods():
            return [p["metadata"]["name"] for p in s.cluster.get("Pod", namespace=s.namespace)
                    if "deletionTimestamp" not in p["metadata"] and p["status"]["phase"] not in ("Succeeded", "Failed")]
        # The end of a run is known some time before its pod has a final phase.
        wait_for(lambda: pods() == [], "the end of its own pod", 30)
        with proxy(w) as p:
            page = p.get(f"{run}.localhost")
            assert page.status == 200 and "look into its storage" in page.text and "written" in page.text, page
            assert pods() == []
            # Who does not wait for it leaves nothing.
            with p.connect() as line:
                line.sendall(f"GET /?files HTTP/1.1\r\nHost: {run}.localhost:{p.port}\r\n\r\n".encode())
                wait_for(pods, "a pod that reads", 20)
            wait_for(lambda: pods() == [], "its end", 30)
            page = p.get(f"{run}.localhost", "/?files")
            assert page.status == 200 and "a.txt" in page.text and "<iframe" not in page.text, page
            assert p.get(f"files.{run}.localhost", "/a.txt").text == "a" * 100000
            wait_for(lambda: pods() == [], "the end of pods that read", 30)


def test_jupyterlab_lives_on(w):
    with site(w) as s, behind_wire(w, s) as wire:
        s.base = jupyter.image(s.cluster)
        s.configure()
        use_wire(w, s, wire)
        run = s.submit("--grace", "1s", "--port", "8888", "--", *jupyter.START, "--port=8888")
        with proxy(w) as p:
            wait_for(lambda: w.show(run)["state"] == "running", "its start", 120)
            lab = jupyter.Lab(p, f"8888.{run}.localhost")
            lab.wait()
            page = p.get(lab.host, f"/lab?token={jupyter.TOKEN}")
            assert page.status == 200 and "JupyterLab" in page.text, page
            with lab.kernel() as kernel:
                assert kernel.run("x = 40; x + 2") == "42"
                took = []
                for turn in range(RESETS):
                    wire.cut_all("rst" if turn % 2 else "fin")
                    begin = time.monotonic()
                    assert kernel.run("x = x + 1; x") == str(41 + turn), p.said.read_text()
                    took.append(time.monotonic() - begin)
                assert kernel.joined > 1
            print(f"proxy: the kernel answers again {sorted(took)[len(took) // 2]:.2f} s after a reset, at most {max(took):.2f} s")


if __name__ == "__main__":
    main()
