#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A provider of machines for `dlrun autoscale` (lib/app/autoscale/provider.h): each is a fake node of kwok's, or only a line of the
state. It fails as tests say.

    kwok_provider.py DIR        a request on standard input; DIR is made by Machines, for tests

`faults.json` of DIR:
    {"room": {GROUP: {"machines": N, "class": "capacity", "how": "now"|"later"|"error"}}
                                 the group gets no more than N machines: told at once, by `status`, or as an error of all
     "boot": {GROUP: N},         a machine is a node when `groups` was asked for N times more; -1: never
     "stop": {GROUP: N},         the same of one that ends
     "once": [{"verb": VERB, "group": GROUP (any), "skip": N, "do": "hang"|"exit"|"kill"|"garbage", "when": "before"|"after"}]}
                                 the next call but N: before or after its effect it hangs, exits with 1, kills its caller, or
                                 responds what is none
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from kube_api import Api, ApiError, fake_node


@contextlib.contextmanager
def held(path):
    """The JSON of a file, for one process at a time; it is written when the block ends."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        value = json.loads(path.read_text()) if path.exists() else {}
        yield value
        new = path.with_suffix(".new")
        new.write_text(json.dumps(value))
        new.rename(path)


class Machines:
    """The tests' side: groups as in a snapshot, their faults and what was asked of them. cluster: where machines are nodes."""

    def __init__(self, directory, groups, cluster=None):
        self.dir, self.cluster = Path(directory), cluster
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.dir / "groups.json").write_text(json.dumps(groups))
        if cluster:
            cluster.start_fakes()
            (self.dir / "api.json").write_text(json.dumps([cluster.address, str(cluster.ca), cluster.tokens["admin"]]))
        self.exec = [str(Path(__file__).resolve()), str(self.dir)]

    def faults(self, **switches):
        """Replaces those that are named."""
        with held(self.dir / "faults.json") as faults:
            faults.update(switches)

    def calls(self, verb=None, group=None):
        """Of all that were made, the oldest first: {"verb", "group", …, "token", "response" (none where it failed)}."""
        with open(self.dir / "log", "a+") as log:
            fcntl.flock(log, fcntl.LOCK_SH)
            log.seek(0)
            calls = [json.loads(line) for line in log]
        return [c for c in calls if verb in (None, c["verb"]) and group in (None, c.get("group"))]

    def machines(self, group):
        with held(self.dir / f"state-{group}.json") as state:
            return state.get("machines", [])

    def close(self):
        """The nodes go."""
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for about in json.loads((self.dir / "groups.json").read_text()):
                list(threads.map(lambda machine: self.cluster.delete("Node", machine["id"]), self.machines(about["id"])))


def machine_node(api, template, name):
    """What becomes of a machine of a group."""
    fake_node(api, name, template.get("labels"), template.get("taints", []), template.get("room", {}), providerID=f"kwok://{name}")


class Failed(Exception):
    """The response says that nothing was done."""


def refuse(kind, text):
    return {"class": kind, "text": text}


class Provider:
    def __init__(self, directory):
        self.dir, self.caller = Path(directory), os.getppid()
        self.groups = {g["id"]: g for g in json.loads((self.dir / "groups.json").read_text())}
        api = self.dir / "api.json"
        self.api = Api(*json.loads(api.read_text())) if api.exists() else None

    # --- faults

    def due(self, request):
        """The fault of this call, or none."""
        with held(self.dir / "faults.json") as faults:
            self.faults = dict(faults)
            for fault in faults.get("once", []):
                if fault["verb"] != request["verb"] or fault.get("group", request.get("group")) != request.get("group"):
                    continue
                fault["skip"] = fault.get("skip", 0) - 1
                if fault["skip"] < 0:
                    faults["once"].remove(fault)
                    return fault
        return {}

    def fail(self, fault, request):
        self.log(request, fault=fault)
        while fault["do"] == "hang" and os.getppid() == self.caller:
            time.sleep(0.1)
        if fault["do"] == "kill" and os.getppid() == self.caller:
            os.kill(self.caller, signal.SIGKILL)
        if fault["do"] == "garbage":
            print("{", flush=True)
            sys.exit(0)
        sys.exit("as the test wants")

    def log(self, request, **more):
        with open(self.dir / "log", "a") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.write(json.dumps({**request, "at": time.time(), **more}) + "\n")

    # --- machines

    @contextlib.contextmanager
    def state(self, group):
        with held(self.dir / f"state-{group}.json") as state:
            about = self.groups[group]
            for key, value in {"desired": about.get("desired", 0), "next": 0, "machines": [], "tokens": {}}.items():
                state.setdefault(key, value)
            yield state

    def make_nodes(self, group, machines):
        template = self.groups[group].get("template", {})
        for machine in machines:
            if self.api and machine["boot"] == 0 and not machine["node"]:
                machine_node(self.api, template, machine["id"])
                machine["node"] = True

    def end(self, state, machine):
        state["machines"].remove(machine)
        try:
            if self.api:
                self.api("DELETE", f"/api/v1/nodes/{machine['id']}")
        except ApiError as wrong:
            if wrong.status != 404:
                raise

    def pass_time(self, group, state):
        """What happens between two turns."""
        for machine in list(state["machines"]):
            if machine["boot"] > 0:
                machine["boot"] -= 1
            if machine["stop"] is not None:
                machine["stop"] -= 1
                if machine["stop"] < 0:
                    self.end(state, machine)
        self.make_nodes(group, state["machines"])

    # --- verbs

    def do_groups(self, _):
        found = []
        for group, about in self.groups.items():
            with self.state(group) as state:
                self.pass_time(group, state)
                found.append({"provider": "kwok", "min": 0, **about, "desired": state["desired"], "instances": [
                    {"id": m["id"], "since": m["since"], "state": "stopping" if m["stop"] is not None else
                     "running" if m["boot"] == 0 else "pending"} for m in state["machines"]]})
        return {"groups": found}

    def do_grow(self, request):
        group, to, token = request["group"], request["to"], request["token"]
        with self.state(group) as state:
            if token not in state["tokens"]:
                state["tokens"][token] = self.grow(group, state, to)
            self.make_nodes(group, state["machines"])
            return state["tokens"][token]["response"]

    def grow(self, group, state, to):
        if to > self.groups[group]["max"]:
            raise Failed(refuse("config", f"{group} has {self.groups[group]['max']} machines at most"))
        room = self.faults.get("room", {}).get(group, {"machines": to, "how": "now", "class": "capacity"})
        wanted = max(0, to - state["desired"])
        n = max(0, min(wanted, room["machines"] - len(state["machines"])))
        failed = [refuse(room["class"], f"no machine {i + 1} of {group} is left") for i in range(n, wanted)]
        if failed and room["how"] == "error":
            raise Failed(failed[0])
        new = [f"{group}-{state['next'] + i}" for i in range(n)]
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        boot = self.faults.get("boot", {}).get(group, 0)
        state["next"] += n
        state["machines"] += [{"id": m, "boot": boot, "stop": None, "node": False, "since": since} for m in new]
        # A group whose machines fail later counts them as its own until then.
        is_late = room["how"] == "later"
        state["desired"] += wanted if is_late else n
        return {"later": failed if is_late else [],
                "response": {"accepted": state["desired"], "instances": new, "failed": [] if is_late else failed}}

    def do_status(self, request):
        with self.state(request["group"]) as state:
            return {"failed": state["tokens"].get(request["token"], {}).get("later", [])}

    def do_shrink(self, request):
        group, to, result = request["group"], request["to"], []
        with self.state(group) as state:
            if to < self.groups[group].get("min", 0):
                raise Failed(refuse("config", f"{group} keeps {self.groups[group]['min']} machines"))
            for machine in [m for m in state["machines"] if m["id"] in request["instances"] and m["stop"] is None]:
                machine["stop"] = self.faults.get("stop", {}).get(group, 0)
                if machine["stop"] == 0:
                    self.end(state, machine)
            state["desired"] = min(state["desired"], to)
            there = {m["id"] for m in state["machines"]}
            result = [{"id": i, "gone": i not in there} for i in request["instances"]]
        return {"instances": result}

    def serve(self, request):
        fault = self.due(request)
        if fault.get("when") == "before":
            self.fail(fault, request)
        try:
            response = getattr(self, f"do_{request['verb']}")(request)
        except Failed as reason:
            response = {"error": reason.args[0]}
        if fault:
            self.fail(fault, request)
        self.log(request, response=response)
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    Provider(sys.argv[1]).serve(json.loads(sys.stdin.readline()))
