#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dlrun autoscale manifest`, as a real API server takes it; and an autoscaler that has the rights of its service account, and no others."""

import contextlib
import json
import socket
import subprocess
import urllib.request

from cluster_autoscale_run import GPUS, RANKS, SOON_S, SYSTEM, lab
from harness import *  # noqa: F403

ACCOUNT = "dlrun-autoscale"
DENIED = ["delete pods", "create pods", f"create pods -n {SYSTEM}", "get secrets", "list secrets", "create nodes", "update nodes",
          "patch jobs", "create jobs", "get configmaps", f"update configmaps/dlrun-autoscale-settings -n {SYSTEM}",
          f"delete configmaps -n {SYSTEM}", f"update leases/other -n {SYSTEM}", "create rolebindings"]
ALLOWED = ["delete nodes", "patch nodes", "list pods", "list jobs", f"update configmaps/dlrun-autoscale-state -n {SYSTEM}",
           f"update leases/dlrun-autoscale -n {SYSTEM}"]


@contextlib.contextmanager
def applied(here):
    """All of it but the Deployment, which would run on the nodes of the tests, and the path of the whole; the namespace stays for others."""
    whole, apart = here.w.dir / "manifest.yaml", here.w.dir / "apart.yaml"
    whole.write_text(here.w.ok("autoscale", "manifest", "--image", "registry.example/dlrun:1", "--settings", "autoscale.yaml").out)
    documents = [d for d in whole.read_text().split("---\n") if "\nkind: Deployment\n" not in d]
    apart.write_text("---\n".join(documents))
    try:
        here.c.kubectl("apply", "-f", apart)
        yield whole
    finally:
        apart.write_text("---\n".join(d for d in documents if "\nkind: Namespace\n" not in d))
        here.c.kubectl("delete", "--ignore-not-found", "-f", apart)


def test_the_rights_of_the_manifest_are_enough(w):
    with lab(w, a=8) as here, applied(here) as whole:
        # A pod that the level of the namespace refuses would be a warning.
        tried = subprocess.run(here.c.kubectl_argv("apply", "--dry-run=server", "-f", whole), stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=60, check=False)
        assert f"deployment.apps/{ACCOUNT} created (server dry run)" in tried.stdout, tried
        assert tried.returncode == 0 and not tried.stderr, tried
        token = here.c.kubectl("-n", SYSTEM, "create", "token", ACCOUNT).strip()
        here.w.env["KUBECONFIG"] = str(here.c.kubeconfig(here.s.user, here.w.dir / "account", how="none", credentials={"token": token}))
        here.add_gang("g", RANKS)
        loop = here.start()
        here.c.wait(lambda: len(here.bound()) == RANKS, "the gang on its machines", SOON_S)
        here.remove_pods()
        here.c.wait(lambda: not here.nodes(), "the end of all machines", SOON_S)
        loop.terminate()
        assert loop.wait(30) == 0, here.said()
        assert "forbidden" not in here.said(), here.said()
        assert here.c.get("ConfigMap", "dlrun-autoscale-state", SYSTEM)["data"]["state"]


def told(here, port, notices):
    """Settings with a port of metrics and a program of notices."""
    path = here.w.tree / "autoscale.yaml"
    keeps = ["/bin/sh", "-c", 'cat >>"$1"', "sh", str(notices)]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": port, "notify": keeps}))


def test_metrics_and_notices_tell_what_was_done(w):
    notices = w.dir / "notices"
    with lab(w, a=RANKS) as here:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        told(here, port, notices)
        here.add_gang("g", RANKS)
        here.add_pods(1, gpus=2 * GPUS)
        loop = here.start()
        values = {}

        def scraped():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4"), response.headers
                values.update(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#"))
            return values.get(f'dlrun_autoscale_group_ready{{group="{here.id("a")}"}}') == str(RANKS) and \
                values["dlrun_autoscale_pods_waiting"] == "1"
        here.c.wait(scraped, "metrics of the machines", SOON_S)
        group = f'{{group="{here.id("a")}"}}'
        assert values[f"dlrun_autoscale_machines_bought_total{group}"] == str(RANKS), values
        assert values["dlrun_autoscale_pods_not_helped"] == "1" and values['dlrun_autoscale_info{cluster="lab"}'] == "1", values
        assert values["dlrun_autoscale_price_per_hour"] == str(10 * RANKS), values
        assert int(values["dlrun_autoscale_turns_total"]) > 0 and values["dlrun_autoscale_notices_lost_total"] == "0", values
        lines = [json.loads(line) for line in notices.read_text().splitlines()]
        loop.terminate()
        assert loop.wait(30) == 0, here.said()
    assert [n["kind"] for n in lines].count("grow") == 1, lines
    reasons = [n for n in lines if n["kind"] == "not_helped"]
    assert reasons and {n["owner"] for n in reasons} == {f"{here.tag}/p0"} and all(n["cluster"] == "lab" for n in lines), lines
    assert len({n["text"] for n in reasons}) == len(reasons), "it is told again each turn"


def test_the_manifest_gives_no_other_rights(w):
    with lab(w, a=1) as here, applied(here):
        who = f"--as=system:serviceaccount:{SYSTEM}:{ACCOUNT}"
        said = {question: here.c.kubectl("auth", "can-i", who, *question.split(), check=False).split()[-1] for question in DENIED + ALLOWED}
        assert said == {q: "no" for q in DENIED} | {q: "yes" for q in ALLOWED}, said
        anybody = here.c.kubectl("auth", "can-i", "--as=anybody", "--as-group=system:authenticated", "get", f"configmaps/{ACCOUNT}",
                                 "-n", SYSTEM, check=False)
        assert anybody.split()[-1] == "yes", anybody


if __name__ == "__main__":
    main()
