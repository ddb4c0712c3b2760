# SPDX-License-Identifier: Apache-2.0
"""The inside of a cluster of the tests: all its processes, in namespaces of its own.

Started by cluster.py, as PID 1 of a PID and a mount namespace, so that with it everything ends: the
programs, the pods with their shims, the mounts; and with the last process the network of the pods.
It ends itself when its standard input does, which cluster.py holds open.

The programs speak with each other over loopback. Pods live behind a router, a network namespace
with a bridge for each node, and reach from there one address of the machine, where CoreDNS and a relay to the API server listen:

    pod --- bridge podsN 10.S.N.1/24 (router) 10.S.0.2 --- 10.S.0.1 dlkS (machine): node-1, CoreDNS
                                                           10.S.0.2 + N: the other nodes

Commands come through the socket DIR/control, a line of JSON each: {"do": "start" | "signal" |
"parts", "part": NAME, "signal": N, "args": [...]}; each is answered with a line.
"""

import concurrent.futures
import contextlib
import hashlib
import hmac
import http.server
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import kube_images
from harness import needs, wait_for
from kube_api import Api, ApiError, write_kubeconfig
from registries import Distribution, FaultProxy, free_port, listens

START_S = 180
STARTS = 3
# Go collects garbage when the heap has grown by so many percent: less often than its 100, as cores are what the tests lack, and
# not less than that, as a cluster of two nodes has 0.7 GiB by 100 and 1.3 by 400.
GOGC = "200"
API_SERVICE, API_PORT = "10.96.0.1", 6443
CNI = next((d for d in map(Path, ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")) if (d / "bridge").exists()), None)
PRIVATE = ("/run", "/var/log", "/var/lib/cni")
CGROUPS = Path("/sys/fs/cgroup")
USERS = {"admin": ("system:masters",), "alice": ("researchers",), "bob": ("researchers",), "carol": ("researchers",)}
OPENSSL = "[req]\ndistinguished_name = dn\n[dn]\n[ca]\nbasicConstraints = critical, CA:true\n[leaf]\nsubjectAltName = {names}\n"
AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
         "rules": [{"level": "None", "userGroups": ["system:nodes"]},
                   {"level": "None", "users": ["system:kube-controller-manager", "system:kube-scheduler", "system:parts"]},
                   {"level": "Metadata"}]}


def run(*argv, **more):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr[-500:]}")
    return done.stdout


def is_stopped(pid):
    """All its threads; they take some time to notice, and some end meanwhile."""
    try:
        return all(file.read_text().rpartition(")")[2].split()[0] == "T" for file in Path(f"/proc/{pid}/task").glob("*/stat"))
    except OSError:
        return False


class Part:
    def __init__(self, host, name, argv, **env):
        self.host, self.name, self.argv, self.env = host, name, [str(a) for a in argv], env
        self.log = host.dir / f"logs/{name}.log"
        self.process, self.starts = None, 0
        host.parts[name] = self

    def start(self, args=()):
        if self.process and self.process.poll() is None:
            raise RuntimeError(f"{self.name} runs")
        self.args = args
        self.starts += 1
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.argv, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            cwd=self.host.dir, env={"GOGC": GOGC, **os.environ, **self.env})
        return self

    def ready(self, condition):
        wait_for(lambda: self.revived() and condition(), f"start of {self.name}", START_S)

    def revived(self):
        """True while it runs. One that has ended is started again, as by a service manager, but not for ever."""
        if self.process.poll() is None:
            return True
        if self.starts == STARTS:
            raise RuntimeError(f"{self.name} does not start: {self.log.read_text(errors='replace')[-2000:]}")
        self.start(self.args)
        return True


class Host:
    def __init__(self, settings):
        self.settings = SimpleNamespace(**settings)
        self.dir = Path(self.settings.dir)
        self.net = f"10.{100 + self.settings.slot}"
        self.link = f"dlk{self.settings.slot}"
        self.parts, self.nodes = {}, range(1, self.settings.nodes + 1)
        self.ports = {name: free_port() for name in ("etcd", "peer", "apiserver", "ready", "registry", "kwok")}
        self.secret = secrets.token_hex(16)
        self.tokens = {name: secrets.token_hex(16) for name in
                       (*USERS, "controller-manager", "scheduler", "parts", *(f"node-{n}" for n in self.nodes))}
        self.server = f"https://127.0.0.1:{self.ports['apiserver']}"
        self.registry_host = f"127.0.0.1:{self.ports['registry']}"
        self.images = {name: f"{self.registry_host}/{name}:v1" for name in kube_images.IMAGES}

    def node_ip(self, node):
        """The router has the second address."""
        return f"{self.net}.0.{node + (node > 1)}"

    # --- the ground

    def mounts(self):
        for place in PRIVATE:
            os.makedirs(place, exist_ok=True)
            run("mount", "-t", "tmpfs", "dlrun-tests", place)
        for name in ("logs", "certs", "cni", "certs.d"):
            (self.dir / name).mkdir()
        (self.dir / "resolv.conf").write_text(f"nameserver {self.net}.0.1\n")

    def network(self):
        own = os.readlink("/proc/self/ns/net")
        holder = Part(self, "router", ["unshare", "--net", "sleep", "infinity"]).start().process.pid
        wait_for(lambda: os.readlink(f"/proc/{holder}/ns/net") != own, "a network namespace")
        inside = ["nsenter", f"--net=/proc/{holder}/ns/net"]
        subprocess.run(["ip", "link", "delete", self.link], capture_output=True)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "uplink", "netns", holder)
        for node in self.nodes:
            run("ip", "address", "add", f"{self.node_ip(node)}/24", "dev", self.link)
        run("ip", "link", "set", self.link, "up")
        for words in (f"address add {self.net}.0.2/24 dev uplink", "link set uplink up", "link set lo up"):
            run(*inside, "ip", *words.split())
        run(*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        run("ip", "route", "add", f"{self.net}.0.0/16", "via", f"{self.net}.0.2")
        # There is no kube-proxy, but what runs in a pod may ask the API server.
        run(*inside, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", API_SERVICE, "-p", "tcp", "--dport", "443", "-j", "DNAT",
            "--to-destination", f"{self.net}.0.1:{API_PORT}")
        self.relay = FaultProxy(("127.0.0.1", self.ports["apiserver"]), (f"{self.net}.0.1", API_PORT))
        self.plugins(inside)

    def plugins(self, inside):
        """Those of CNI, of which the bridge is built behind the router."""
        for plugin in CNI.iterdir():
            (self.dir / "cni" / plugin.name).symlink_to(plugin)
        bridge = self.dir / "cni/bridge"
        bridge.unlink()
        bridge.write_text(f"#!/bin/sh\nexec {' '.join(inside)} {CNI}/bridge\n")
        bridge.chmod(0o755)

    def cgroup(self, node):
        """The name of one of the node's own: a kubelet ends whatever it does not know below its own."""
        name = f"{self.settings.cgroup}-{node}"
        version2 = (CGROUPS / "cgroup.controllers").exists()
        for top in [CGROUPS] if version2 else [d for d in CGROUPS.iterdir() if (d / "cgroup.procs").exists()]:
            for controller in (top / "cgroup.controllers").read_text().split() if version2 else ():
                with contextlib.suppress(OSError):
                    (top / "cgroup.subtree_control").write_text(f"+{controller}")
            (top / name).mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not version2 and (top / file).exists():
                    (top / name / file).write_text((top / file).read_text())
        return f"/{name}"

    def certificates(self):
        there = self.dir / "certs"
        names = ["IP:127.0.0.1", "DNS:localhost", "DNS:kubernetes", f"IP:{API_SERVICE}", *(f"IP:{self.node_ip(n)}" for n in self.nodes)]
        (there / "openssl.cnf").write_text(OPENSSL.format(names=",".join(names)))
        new = ["openssl", "req", "-x509", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650",
               "-config", there / "openssl.cnf"]

        def make(name, subject, *more):
            run(*new, "-subj", subject, "-keyout", there / f"{name}.key", "-out", there / f"{name}.pem", *more)

        make("ca", "/CN=authority of the tests", "-extensions", "ca")
        signed = ["-CA", there / "ca.pem", "-CAkey", there / "ca.key", "-extensions", "leaf"]
        subjects = {"server": "/CN=server", **{u: f"/O={groups[0]}/CN={u}" for u, groups in USERS.items()}}
        list(self.pool.map(lambda item: make(*item, *signed), subjects.items()))
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", there / "accounts.key")

    def users(self):
        groups = {"controller-manager": ("system:kube-controller-manager", "system:masters"), "scheduler": ("system:kube-scheduler", ""),
                  "parts": ("system:parts", "system:masters"),
                  **{f"node-{n}": (f"system:node:node-{n}", "system:nodes") for n in self.nodes},
                  **{u: (u, ",".join(g)) for u, g in USERS.items()}}
        (self.dir / "tokens.csv").write_text("".join(
            f'{self.tokens[name]},{user},{user},"{group}"\n' for name, (user, group) in groups.items()))
        for name in groups:
            write_kubeconfig(self.dir / f"{name}.kubeconfig",
                             {"server": self.server, "certificate-authority": f"{self.dir}/certs/ca.pem"}, {"token": self.tokens[name]})

    def token_server(self):
        """Says of the tokens that Cluster.short_token makes whose they are, until their end."""
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = host.judge(review["spec"].get("token", ""))
                body = json.dumps({"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_kubeconfig(self.dir / "tokens.kubeconfig", {"server": f"http://127.0.0.1:{server.server_port}/"}, {})

    def judge(self, token):
        user, _, rest = token.partition(".")
        end, _, sign = rest.partition(".")
        right = hmac.new(self.secret.encode(), f"{user}.{end}".encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(sign.encode(), right.encode()) or time.time() * 1000 > int(end):
            return {"authenticated": False, "error": "unknown, or its time is over"}
        return {"authenticated": True, "user": {"username": user, "uid": user, "groups": list(USERS[user])}}

    # --- the programs

    def kubernetes(self, program, *args, name=None, **env):
        return Part(self, name or program.removeprefix("kube-"), [self.settings.kubernetes, program, *args], **env)

    def etcd(self):
        url, peer = (f"http://127.0.0.1:{self.ports[p]}" for p in ("etcd", "peer"))
        part = Part(self, "etcd", [self.settings.etcd, f"--data-dir={self.dir}/etcd",
                                   f"--listen-client-urls={url}", f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                                   f"--initial-cluster=default={peer}", "--unsafe-no-fsync"])
        part.start().ready(lambda: listens(self.ports["etcd"]))

    def apiserver(self):
        certs = self.dir / "certs"
        (self.dir / "audit.json").write_text(json.dumps(AUDIT))
        part = self.kubernetes(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.ports['etcd']}", "--bind-address=127.0.0.1",
            f"--secure-port={self.ports['apiserver']}", "--advertise-address=127.0.0.1", f"--tls-cert-file={certs}/server.pem",
            f"--tls-private-key-file={certs}/server.key", f"--client-ca-file={certs}/ca.pem",
            f"--service-account-key-file={certs}/accounts.key",
            f"--service-account-signing-key-file={certs}/accounts.key", "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.dir}/tokens.csv", "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={certs}/admin.pem", f"--kubelet-client-key={certs}/admin.key",
            f"--authentication-token-webhook-config-file={self.dir}/tokens.kubeconfig", "--authentication-token-webhook-cache-ttl=1s",
            f"--audit-policy-file={self.dir}/audit.json", f"--audit-log-path={self.dir}/logs/audit.log", f"--cert-dir={certs}")
        part.start()
        self.api = Api(self.server.removeprefix("https://"), f"{certs}/ca.pem", self.tokens["parts"])
        part.ready(lambda: self.answers("/readyz") == "ok")

    def answers(self, path):
        try:
            return self.api("GET", path)
        except (OSError, ApiError):
            return None

    def controllers(self):
        config = [f"--kubeconfig={self.dir}/controller-manager.kubeconfig", "--leader-elect=false", "--secure-port=0"]
        self.kubernetes("kube-controller-manager", *config, "--use-service-account-credentials=false", "--kube-api-qps=500",
                        "--kube-api-burst=1000", f"--service-account-private-key-file={self.dir}/certs/accounts.key",
                        f"--root-ca-file={self.dir}/certs/ca.pem", "--node-monitor-grace-period=20s", "--node-monitor-period=2s").start()
        self.kubernetes("kube-scheduler", f"--kubeconfig={self.dir}/scheduler.kubeconfig", "--leader-elect=false", "--secure-port=0",
                        "--kube-api-qps=500", "--kube-api-burst=1000").start()

    def coredns(self):
        (self.dir / "Corefile").write_text(
            f".:53 {{\n bind {self.net}.0.1\n errors\n ready 127.0.0.1:{self.ports['ready']}\n"
            f" kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {self.dir}/parts.kubeconfig\n  pods insecure\n }}\n}}\n")
        Part(self, "coredns", [self.settings.coredns, "-conf", self.dir / "Corefile"]).start()

    def kwok(self):
        Part(self, "kwok", [self.settings.kwok, f"--kubeconfig={self.dir}/parts.kubeconfig", "--manage-all-nodes=false",
                            f"--config={Path(__file__).with_name('kubernetes') / 'kwok.yaml'}",
                            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
                            f"--server-address=127.0.0.1:{self.ports['kwok']}", "--cidr=10.99.0.0/16", "--node-ip=127.0.0.1"])

    def containerd(self, node):
        there = self.dir / f"node-{node}"
        for name in ("cni", "pods", "volumes"):
            (there / name).mkdir(parents=True)
        (there / "cni/pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": f"pods{node}", "plugins": [
            {"type": "bridge", "bridge": f"pods{node}", "isGateway": True, "ipMasq": False,
             "ipam": {"type": "host-local", "dataDir": f"{there}/addresses", "routes": [{"dst": "0.0.0.0/0"}],
                      "ranges": [[{"subnet": f"{self.net}.{node}.0/24"}]]}}]}))
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        (there / "containerd.toml").write_text(
            f'version = 2\nroot = "{there}/containerd"\nstate = "/run/node-{node}"\n'
            f'disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",'
            f' "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]\n'
            f'[grpc]\naddress = "{there}/containerd.sock"\n[ttrpc]\naddress = "{there}/ttrpc.sock"\n'
            f'[{cri}]\nrestrict_oom_score_adj = true\ndisable_apparmor = true\nstream_server_address = "127.0.0.1"\n'
            f'stream_server_port = "0"\nsandbox_image = "{self.images["pause"]}"\n'
            f'[{cri}.cni]\nbin_dir = "{self.dir}/cni"\nconf_dir = "{there}/cni"\n[{cri}.registry]\nconfig_path = "{self.dir}/certs.d"\n'
            f'[{cri}.containerd]\nsnapshotter = "{self.snapshotter}"\ndefault_runtime_name = "runc"\n'
            f'[{cri}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n')
        part = Part(self, f"containerd-{node}", ["containerd", "-c", there / "containerd.toml"]).start()
        part.ready(lambda: (there / "containerd.sock").exists())

    def find_snapshotter(self):
        """Before the nodes start beside each other. Copies, where the file system below is itself such a one."""
        probe = self.dir / "probe"
        for name in ("lower", "upper", "work", "merged"):
            (probe / name).mkdir(parents=True, exist_ok=True)
        how = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
        done = subprocess.run(["mount", "-t", "overlay", "-o", how, "overlay", probe / "merged"], capture_output=True)
        if done.returncode == 0:
            run("umount", "--lazy", probe / "merged")
        return "native" if done.returncode else "overlayfs"

    def kubelet(self, node):
        there, certs = self.dir / f"node-{node}", self.dir / "certs"
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False},
                               "x509": {"clientCAFile": f"{certs}/ca.pem"}},
            "authorization": {"mode": "AlwaysAllow"}, "address": self.node_ip(node), "port": 10250, "healthzPort": 0,
            "tlsCertFile": f"{certs}/server.pem", "tlsPrivateKeyFile": f"{certs}/server.key",
            "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": self.cgroup(node), "enforceNodeAllocatable": [],
            "failSwapOn": False, "makeIPTablesUtilChains": False, "oomScoreAdj": 0,
            "podLogsDir": f"{there}/pods", "volumePluginDir": f"{there}/volumes", "resolvConf": f"{self.dir}/resolv.conf",
            "containerRuntimeEndpoint": f"unix://{there}/containerd.sock", "clusterDNS": [f"{self.net}.0.1"],
            "clusterDomain": "cluster.local", "serializeImagePulls": False, "registryPullQPS": 0, "imageGCHighThresholdPercent": 100,
            # The disk of the machine is not the tests' to judge.
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
            "nodeLeaseDurationSeconds": 16, "volumeStatsAggPeriod": "2s", "containerLogMonitorInterval": "3s", **self.settings.kubelet}
        (there / "kubelet.json").write_text(json.dumps(config, indent=1))
        self.kubernetes("kubelet", f"--config={there}/kubelet.json", f"--kubeconfig={self.dir}/node-{node}.kubeconfig",
                        f"--root-dir={there}/kubelet", f"--hostname-override=node-{node}", f"--node-ip={self.node_ip(node)}",
                        name=f"kubelet-{node}").start()

    def registry(self):
        registry = Distribution(SimpleNamespace(dir=self.dir), "registry", needs("docker-registry"))
        part = Part(self, "registry", registry.argv(self.ports["registry"])).start()
        part.ready(lambda: listens(self.ports["registry"]))
        (self.dir / "auth.json").write_text("{}")
        list(self.pool.map(self.put, self.images))

    def put(self, name):
        run("skopeo", "copy", "-q", "--dest-tls-verify=false", "--authfile", self.dir / "auth.json",
            f"oci:{kube_images.layout(name)}:v1", f"docker://{self.images[name]}")

    # --- all together

    def start(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.mounts()
        self.snapshotter = self.find_snapshotter()
        images = self.pool.submit(self.registry)
        grounds = [self.pool.submit(self.network)]
        for node in self.nodes:
            grounds.append(self.pool.submit(self.containerd, node))
        etcd = self.pool.submit(self.etcd)
        self.certificates()
        self.users()
        self.token_server()
        etcd.result()
        self.apiserver()
        self.controllers()
        self.kwok()
        for ground in grounds:
            ground.result()
        for node in self.nodes:
            self.kubelet(node)
        self.coredns()
        images.result()
        wait_for(self.complete, "a cluster that is ready", START_S)

    def complete(self):
        for part in self.parts.values():
            if part.process and part.process.poll() is not None:
                part.revived()
        try:
            nodes = self.api("GET", "/api/v1/nodes")["items"]
            self.api("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except (OSError, ApiError):
            return False
        return len(nodes) == len(self.nodes) and not any(n["spec"].get("taints") for n in nodes) and listens(self.ports["ready"])

    def state(self):
        return {"dir": str(self.dir), "server": self.server, "ca": f"{self.dir}/certs/ca.pem", "tokens": self.tokens,
                "images": self.images, "registry": self.registry_host, "nodes": [f"node-{n}" for n in self.nodes],
                "pid_namespace": os.readlink("/proc/self/ns/pid"),
                "secret": self.secret, "dns_ready": self.ports["ready"],
                "network": f"{self.net}.0.0/16", "kubernetes": self.settings.kubernetes, "cgroup": self.settings.cgroup}

    # --- what it is told

    def serve(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.dir}/control")
            listener.listen()
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.talk, args=[connection], daemon=True).start()

    def talk(self, connection):
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                try:
                    answer = self.obey(**json.loads(line))
                except Exception as wrong:
                    answer = {"error": str(wrong) or repr(wrong)}
                lines.write(json.dumps(answer) + "\n")
                lines.flush()

    def obey(self, do, part=None, args=(), **more):
        if do == "parts":
            return {name: {"pid": p.process.pid, "status": p.process.poll()} for name, p in self.parts.items() if p.process}
        if do == "start":
            self.parts[part].start(args)
        elif do == "signal":
            process = self.parts[part].process
            process.send_signal(more["signal"])
            if more["signal"] in (signal.SIGKILL, signal.SIGTERM):
                process.wait(START_S)
            if more["signal"] == signal.SIGSTOP:
                wait_for(lambda: is_stopped(process.pid), f"the stop of {part}")
        else:
            raise ValueError(do)
        return {}


def work(directory):
    """Until standard input ends, or the start fails."""
    host = Host(json.loads((directory / "settings.json").read_text()))
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    begin = time.monotonic()
    try:
        host.start()
        threading.Thread(target=host.serve, daemon=True).start()
        state = {**host.state(), "start_s": round(time.monotonic() - begin, 2)}
    except BaseException:
        state = {"error": traceback.format_exc(limit=-3)}
    new = directory / "state.new"
    new.write_text(json.dumps(state, indent=1))
    new.rename(directory / "state.json")
    threading.Event().wait()


def main():
    worker = os.fork()
    if worker == 0:
        try:
            work(Path(sys.argv[1]))
        finally:
            os._exit(1)
    os.close(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.wait()[0] != worker:
        pass


if __name__ == "__main__":
    main()
