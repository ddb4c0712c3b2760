#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The provider of Auto Scaling groups: with moto, which checks signatures, and with a fake whose launches fail as tests say."""

import datetime
import subprocess

from harness import *  # noqa: F403
from s3site import S3Server, moto

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fake"))

from aws import Aws, Group  # noqa: E402
from kube_api import write_kubeconfig  # noqa: E402
from kube_fake import NODES, Cluster  # noqa: E402
from scripted import Answer  # noqa: E402

CAS = "k8s.io/cluster-autoscaler/"


class Provider:
    """`aws_tool` with regions; a method for each verb."""

    def __init__(self, w, env, *regions, seconds=60):
        path = Path(w.dlrun).parent / "tests/real/aws_tool"
        if not path.exists():
            raise Skip("aws_tool is not built")
        self.log = w.dir / f"aws_tool-{time.monotonic_ns()}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([path, str(seconds), *regions], env={**w.env, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def ask(self, verb, **more):
        self.process.stdin.write(json.dumps({"verb": verb, "cluster": "lab", **more}).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        assert b"canary" not in line, line
        return json.loads(line)

    def groups(self):
        found = self.ask("groups")
        assert "groups" in found, found
        self.remarks = found["remarks"]
        return {g["id"]: g for g in found["groups"]}

    def grow(self, group, size, token="t1", before=0):
        return self.ask("grow", group=group, **{"from": before, "to": size, "token": token})

    def status(self, group, since):
        return self.ask("status", group=group, token="t1", since=since)["failed"]

    def shrink(self, group, size, *instances):
        return self.ask("shrink", group=group, to=size, instances=list(instances))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def now(later=0):
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=later)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


MAKE = """
import boto3, botocore.config, json, sys
endpoint, key, secret = sys.argv[1:]
# A server that takes its time is not asked a second time.
patient = botocore.config.Config(read_timeout=600, retries=dict(total_max_attempts=1))
for region in ("us-east-1", "us-west-2"):
    where = dict(endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name=region,
                 config=patient)
    ec2, scaling = boto3.client("ec2", **where), boto3.client("autoscaling", **where)
    data = dict(ImageId="ami-12c6146b", InstanceType="g5.xlarge", InstanceMarketOptions=dict(MarketType="spot"))
    made = ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)["LaunchTemplate"]["LaunchTemplateId"]
    for name, tags in (("gpu a+b", {"dlrun/cluster": "lab"}), ("theirs", {"dlrun/cluster": "lab", "k8s.io/cluster-autoscaler/enabled": "true"}),
                       ("other", {"dlrun/cluster": "other"}), ("none", {})):
        scaling.create_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, MaxSize=4, DesiredCapacity=1, AvailabilityZones=[region + "a"],
                                          LaunchTemplate=dict(LaunchTemplateId=made), Tags=[dict(Key=k, Value=v) for k, v in tags.items()],
                                          NewInstancesProtectedFromScaleIn=region == "us-west-2")
scaling.put_scaling_policy(AutoScalingGroupName="gpu a+b", PolicyName="p", AdjustmentType="ChangeInCapacity", ScalingAdjustment=-1)
"""


def test_with_a_server_that_checks_signatures(w):
    with S3Server(w.dir) as server:
        subprocess.run([moto(), "-c", MAKE, server.endpoint, server.env["AWS_ACCESS_KEY_ID"], server.secret], check=True)
        env = {**server.env, "AWS_ENDPOINT_URL": server.endpoint}
        with Provider(w, env, "us-west-2", "us-east-1") as aws:
            groups = aws.groups()
            assert list(groups) == ["gpu a+b@us-west-2", "theirs@us-west-2", "gpu a+b@us-east-1", "theirs@us-east-1"], groups
            ours = groups["gpu a+b@us-east-1"]
            assert (ours["min"], ours["max"], ours["desired"], ours["zone"], ours["spot"]) == (0, 4, 1, "us-east-1a", True), ours
            template = ours["template"]
            assert template["labels"]["node.kubernetes.io/instance-type"] == "g5.xlarge" and template["room"]["nvidia.com/gpu"] == 1, ours
            assert [g["weight"] for g in groups.values()] == [0, 0, 1, 1]
            assert [(r.partition(": ")[0], w) for r in aws.remarks for w in ("Cluster Autoscaler", "scaling policy", "scale-in") if w in r] == [
                ("theirs@us-west-2", "Cluster Autoscaler"), ("gpu a+b@us-west-2", "scaling policy"),
                ("theirs@us-east-1", "Cluster Autoscaler"), ("gpu a+b@us-east-1", "scale-in")] and len(aws.remarks) == 4, aws.remarks
            assert "Cluster Autoscaler" in groups["theirs@us-east-1"]["refused"] and "refused" not in ours
            assert "Cluster Autoscaler" in aws.grow("theirs@us-east-1", 2)["error"]
            # From 0, which it is not: by its size. Moto has no LaunchInstances.
            assert aws.grow("gpu a+b@us-east-1", 3, before=0)["accepted"] == 3
            after = aws.groups()
            assert [after[g]["desired"] for g in groups] == [1, 1, 3, 1], after
            ids = [i["id"] for i in after["gpu a+b@us-east-1"]["instances"]]
            assert len(ids) == 3 and all(i["state"] == "running" and i["since"] for i in after["gpu a+b@us-east-1"]["instances"])
            ended = aws.shrink("gpu a+b@us-east-1", 2, ids[1], "i-gone")["instances"]
            assert [(i["id"], i.get("error")) for i in ended] == [(ids[1], None), ("i-gone", None)], ended
            left = aws.groups()["gpu a+b@us-east-1"]
            assert left["desired"] == 2 and {i["id"] for i in left["instances"] if i["state"] != "stopping"} == {ids[0], ids[2]}, left
            assert aws.status("gpu a+b@us-east-1", now()) == []
        with Provider(w, {**env, "AWS_SECRET_ACCESS_KEY": "canary"}, "us-east-1") as aws:
            refused = aws.ask("groups")
            assert refused["failure"] == "config" and "SignatureDoesNotMatch" in refused["error"], refused


def test_launches_fail_by_class(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu"))
        group.room = 0
        assert aws.groups()["gpu@us-east-1"]["template"]["room"]["nvidia.com/gpu"] == 1
        for refusal, want in (
                (group.refusal, "capacity"), ("Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity.", "capacity"),
                ("You have requested more vCPU capacity than your current vCPU limit of 32 allows.", "quota"),
                ("Could not launch Spot Instances. SpotMaxPriceTooLow - Your Spot request price is too low.", "price"),
                ("The image id '[ami-1]' does not exist.", "config"), ("Request limit exceeded.", "throttle"), ("Server.InternalError", "other")):
            group.refusal, group.activities, group.desired = refusal, [], 0
            since = now()
            assert aws.grow("gpu@us-east-1", 2, token=want + refusal)["accepted"] == 2
            failed = aws.status("gpu@us-east-1", since)
            assert [f["class"] for f in failed] == [want] and refusal in failed[0]["text"], failed
        # Failures of an earlier grow are not this one's.
        assert aws.status("gpu@us-east-1", now(60)) == []


def test_some_machines_come_and_the_others_are_not_waited_for(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu", size=(0, 1, 10)))
        group.room, group.slow = 2, True
        since = now()
        assert aws.grow("gpu@us-east-1", 6)["accepted"] == 6
        seen = aws.groups()["gpu@us-east-1"]
        assert seen["desired"] == 6 and [i["state"] for i in seen["instances"]] == ["running", "pending", "pending"], seen
        assert [f["class"] for f in aws.status("gpu@us-east-1", since)] == ["capacity"]
        # Never below what is there: the service would choose which of them end.
        for size in (3, 1, 0):
            assert aws.shrink("gpu@us-east-1", size) == {"instances": []}
            assert group.desired == 3 and len(group.live()) == 3, group.instances
        # They have come meanwhile.
        group.instances = {i: "InService" for i in group.instances}
        assert [i["state"] for i in aws.groups()["gpu@us-east-1"]["instances"]] == ["running"] * 3


def test_launches_at_once(w):
    """What a group of one zone does not get is known at once, and a token that comes again buys nothing."""
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu", size=(0, 0, 500)))
        group.zones = ["us-east-1a"]
        made = aws.grow("gpu@us-east-1", 250, "a")
        assert made["accepted"] == group.desired == 250 and made["instances"] == list(group.instances) and made["failed"] == []
        assert sum(server.form(r)["Action"] == "LaunchInstances" for r in server.requests) == 3 and not group.activities
        group.room = 4
        made = aws.grow("gpu@us-east-1", 260, "b", 250)
        assert made["accepted"] == group.desired == 254 and len(made["instances"]) == 4, made
        assert [f["class"] for f in made["failed"]] == ["capacity"], made
        group.room = None
        server.rule(server.action("LaunchInstances"), Answer(how="rst"), nth={1, 2}, stage="after")
        made = aws.grow("gpu@us-east-1", 260, "c", 254)
        assert made["accepted"] == group.desired == len(group.live()) == 260 and len(made["instances"]) == 6, made
        # Somebody else has grown it meanwhile: the size counts.
        made = aws.grow("gpu@us-east-1", 262, "d", 255)
        assert made["accepted"] == group.desired == 262 and made["instances"] == [] and len(group.activities) == 2, made


def test_launches_that_are_not_allowed(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu"))
        group.zones = ["us-east-1a"]
        denied = server.rule(server.action("LaunchInstances"), lambda _: server.refuse("AccessDenied", "not you", 403))
        assert aws.grow("gpu@us-east-1", 2, "a")["accepted"] == 2
        assert aws.grow("gpu@us-east-1", 3, "b", 2)["accepted"] == group.desired == len(group.live()) == 3
        assert denied.fired == 1


def test_throttled(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu"))
        for action in ("DescribeAutoScalingGroups", "SetDesiredCapacity", "DescribeInstanceTypes"):
            server.rule(server.action(action), lambda _: server.refuse("Throttling", "Rate exceeded"), nth={1, 2})
        server.rule(server.action("DescribeAutoScalingGroups"), Answer(502, body="<html>bad gateway</html>"), nth=3)
        assert aws.groups()["gpu@us-east-1"]["template"]
        assert aws.grow("gpu@us-east-1", 2)["accepted"] == 2 and group.desired == 2
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1", seconds=1) as aws:
        server.add("us-east-1", Group("gpu"))
        server.rule(server.action("SetDesiredCapacity"), lambda _: server.refuse("Throttling", "Rate exceeded"))
        refused = aws.grow("gpu@us-east-1", 2)
        assert refused["failure"] == "throttle" and not refused["unknown"], refused


def test_descriptions_that_are_denied(w):
    """Without templates nothing is bought, and the reason is there; machines are still given back."""
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        server.add("us-east-1", Group("gpu", size=(0, 1, 10)))
        server.rule(server.action("DescribeInstanceTypes", "DescribeInstances"), lambda _: server.refuse("UnauthorizedOperation", "not you", 403))
        seen = aws.groups()["gpu@us-east-1"]
        assert "template" not in seen and "UnauthorizedOperation" in seen["failure_text"] and "since" not in seen["instances"][0], seen
        server.drop_rules()
        seen = aws.groups()["gpu@us-east-1"]
        assert seen["template"] and "failure" not in seen and seen["instances"][0]["since"], seen


def test_types_differ_by_region(w):
    with Aws("us-east-1", "us-west-2", "eu-west-1") as server, Provider(w, server.env, *server.groups) as aws:
        for region in server.groups:
            server.add(region, Group("gpu"))
        server.types["us-west-2"]["g5.xlarge"] = 8, 32768, 2
        server.types["us-east-1"]["g5.xlarge"] = None
        for _ in range(2):
            groups = aws.groups()
            assert "template" not in groups["gpu@us-east-1"] and "no type g5.xlarge in us-east-1" in groups["gpu@us-east-1"]["failure_text"], groups
            assert [groups[f"gpu@{r}"]["template"]["room"]["nvidia.com/gpu"] for r in ("us-west-2", "eu-west-1")] == [2, 1], groups
        assert sum(server.form(r)["Action"] == "DescribeInstanceTypes" for r in server.requests) == 3


FINDINGS = (
    ({"suspended": []}, "not changed, its process AZRebalance"), ({"suspended": ["AZRebalance", "Launch"]}, "not changed, its process Launch"),
    ({"tags": {"k8s.io/cluster-autoscaler/enabled": "true"}}, "not changed, it has tags of the Cluster Autoscaler"),
    ({"tags": {"k8s.io/cluster-autoscaler/enabled": "false"}}, "the Cluster Autoscaler may"), ({"tags": {"karpenter.sh/discovery": "lab"}}, "Karpenter"),
    ({"policy": True}, "a scaling policy"), ({"more": {}}, "scale-in protection"), ({"more": {"CapacityRebalance": "true"}}, "CapacityRebalance"),
    ({"more": {"MaxInstanceLifetime": 86400}}, "MaxInstanceLifetime"), ({"more": {"HealthCheckType": "EC2,ELB"}}, "health checks"),
    ({"suspended": ["AZRebalance", "Terminate"]}, "process Terminate"), ({"more": {"WarmPoolConfiguration": {"MinSize": 1}}}, "warm pool"),
    ({"more": {"MixedInstancesPolicy": {"InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 50}}}}, "some of its machines are spot"))


def test_what_else_may_end_machines_is_a_remark(w):
    """One for each, with the groups that have it."""
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        for about, _ in FINDINGS:
            group = server.add("us-east-1", Group(f"g{len(server.groups['us-east-1'])}"))
            group.suspended, group.policy = about.get("suspended", group.suspended), about.get("policy")
            group.tags |= about.get("tags", {})
            group.more = about.get("more") and {**group.more, **about["more"]} if "more" in about else group.more
        aws.groups()
        assert len(aws.remarks) == len(FINDINGS), aws.remarks
        for i, (_, text) in enumerate(FINDINGS):
            assert [r.partition(":")[0] for r in aws.remarks if text in r] == [f"g{i}@us-east-1"], (text, aws.remarks)
        for i in range(5):
            server.add("us-east-1", Group(f"new{i}")).more = {}
        server.add("us-east-1", Group("theirs", cluster="else")).more = {}
        server.groups["us-east-1"]["g5"].suspended.append("AlarmNotification")
        server.groups["us-east-1"]["g9"].suspended += ["ReplaceUnhealthy"]
        aws.groups()
        assert len(aws.remarks) == len(FINDINGS) - 2, aws.remarks
        assert any(r.startswith("g6@us-east-1, new0@us-east-1, new1@us-east-1 and 3 more: ") for r in aws.remarks), aws.remarks


def test_policies_that_may_not_be_read(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        server.add("us-east-1", Group("gpu")).policy = True
        denied = server.rule(server.action("DescribePolicies"), lambda _: server.refuse("AccessDenied", "not you", 403))
        for _ in range(2):
            assert aws.groups()["gpu@us-east-1"]["template"] and not aws.remarks, aws.remarks
        assert denied.fired == 1


def test_machines_that_their_group_does_not_count_stay(w):
    """In standby or a warm pool: their end would make the size one too low, or is refused."""
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu", size=(0, 3, 3)))
        standby, warm, idle = group.instances
        group.instances |= {standby: "Standby", warm: "Warmed:Stopped"}
        group.desired = 1
        ended = aws.shrink("gpu@us-east-1", 0, standby, warm, idle)["instances"]
        assert [i.get("error", "")[-14:] for i in ended] == [" state Standby", "Warmed:Stopped", ""], ended
        assert group.desired == 0 and group.instances == {standby: "Standby", warm: "Warmed:Stopped", idle: "Terminating"}, group.instances


def test_a_region_that_is_away(w):
    with Aws("us-east-1", "us-west-2") as server, Provider(w, server.env, "us-east-1", "us-west-2", seconds=2) as aws:
        for region in server.groups:
            server.add(region, Group("gpu", size=(0, 2, 10)))
        away = server.rule(lambda request: server.region(request) == "us-east-1", 503)
        lost = aws.ask("groups")
        assert lost["failure"] == "other" and "us-east-1" in lost["error"], lost
        server.drop_rules()
        known = aws.groups()
        assert not any("refused" in g for g in known.values())
        server.rule(lambda request: server.region(request) == "us-east-1", 503)
        server.groups["us-west-2"]["gpu"].desired = 5
        seen = aws.groups()
        assert "its state has not been known since" in seen["gpu@us-east-1"]["refused"] and away.fired, seen
        assert seen["gpu@us-east-1"]["instances"] == known["gpu@us-east-1"]["instances"]
        assert seen["gpu@us-west-2"]["desired"] == 5 and "refused" not in seen["gpu@us-west-2"], seen
        assert aws.grow("gpu@us-west-2", 7)["accepted"] == 7
        server.drop_rules()
        assert not any("refused" in g for g in aws.groups().values())


def test_responses_that_are_lost(w):
    """Nothing has its effect twice."""
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        group = server.add("us-east-1", Group("gpu"))
        server.rule(server.action("SetDesiredCapacity"), Answer(how="rst"), nth=1, stage="after")
        assert aws.grow("gpu@us-east-1", 4, "a")["accepted"] == 4 and len(group.live()) == 4
        first, second, *rest = group.live()
        lost = server.rule(server.action("TerminateInstanceInAutoScalingGroup"), Answer(how="rst"), nth=1, stage="after")
        ended = {i["id"]: i for i in aws.shrink("gpu@us-east-1", 2, first, second)["instances"]}
        assert lost.hits == 2 and "error" in ended[first] and not ended[first]["gone"] and "error" not in ended[second], ended
        assert group.desired == 2 and group.live() == rest
        again = aws.shrink("gpu@us-east-1", 2, first, second)["instances"]
        assert lost.hits == 2 and not any("error" in i or i["gone"] for i in again), again
        del group.instances[first], group.instances[second]
        assert all(i["gone"] for i in aws.shrink("gpu@us-east-1", 2, first, second)["instances"])
        assert group.desired == 2 and group.live() == rest
        # A grow that comes late once more.
        assert aws.grow("gpu@us-east-1", 4, "a")["accepted"] == 2 and group.desired == 2
        assert aws.grow("gpu@us-east-1", 4, "b")["accepted"] == 4 and group.desired == 4


def test_machines_that_have_died_are_not_replaced(w):
    """But one that has come meanwhile stays."""
    for comes, want in ((False, 1), (True, 2)):
        with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
            group = server.add("us-east-1", Group("gpu", size=(0, 3, 3)))
            idle, busy, dead = group.instances
            del group.instances[dead]
            group.room = 0
            if comes:
                server.rule(server.action("DescribeAutoScalingGroups"), lambda _: [server.launch(group), None][1], nth=2)
            ended = aws.shrink("gpu@us-east-1", 1, idle, dead)["instances"]
            assert [i["gone"] for i in ended] == [False, True] and not any("error" in i for i in ended), ended
            assert group.desired == len(group.live()) == want and busy in group.live(), (group.desired, group.instances)


def test_what_is_not_ours_stays(w):
    with Aws("us-east-1") as server, Provider(w, server.env, "us-east-1") as aws:
        ours, theirs = (server.add("us-east-1", Group(n, cluster=c, size=(0, 2, 3))) for n, c in (("a", "lab"), ("b", "else")))
        assert list(aws.groups()) == ["a@us-east-1"]
        server.filters = False
        assert list(aws.groups()) == ["a@us-east-1"]
        for group, size, text in (("b@us-east-1", 3, "dlrun/cluster"), ("c@us-east-1", 3, "no such group"), ("a@us-west-2", 3, "no group of these regions"),
                                  ("a", 3, "no group of these regions"), ("a@us-east-1", 4, "maximum is 3")):
            refused = aws.grow(group, size)
            assert refused["failure"] == "config" and text in refused["error"] and not refused["unknown"], refused
        assert "dlrun/cluster" in aws.shrink("b@us-east-1", 0, *theirs.live())["error"]
        assert aws.shrink("a@us-east-1", 2, *theirs.live())["instances"][0]["gone"]
        assert len(theirs.live()) == 2 and theirs.desired == 2
        ours.min = 2
        kept = aws.shrink("a@us-east-1", 1, ours.live()[0])["instances"][0]
        assert "min size" in kept["error"] and len(ours.live()) == 2, kept
        ours.tags["dlrun/cluster"] = "else"
        assert "dlrun/cluster" in aws.grow("a@us-east-1", 3)["error"] and ours.desired == 2


def test_many_groups(w):
    with Aws("us-east-1", page=30) as server, Provider(w, server.env, "us-east-1") as aws:
        for i in range(100):
            server.add("us-east-1", Group(f"g{i}", size=(0, 5, 10), type="p4d.24xlarge" if i % 2 else "m5.xlarge"))
        seen = aws.groups()
        assert len(seen) == 100 and all(len(g["instances"]) == 5 and g["instances"][4]["since"] for g in seen.values())
        assert seen["g1@us-east-1"]["template"]["room"]["nvidia.com/gpu"] == 8 and "nvidia.com/gpu" not in seen["g0@us-east-1"]["template"]["room"]
        before = len(server.requests)
        aws.groups()
        # What describes machines is known now.
        assert len(server.requests) - before == 4, server.lines()[before:]


def test_what_daemons_take(w):
    """A pod that fits on a machine's type and not on its node beside DaemonSets has one machine bought, and none where others run them."""
    with Aws("us-east-1") as server, Cluster() as cluster:
        group = server.add("us-east-1", Group("gpu"))
        config = write_kubeconfig(w.dir / "kubeconfig", {"server": cluster.url}, {})
        w.write("autoscale.yaml", json.dumps({"cluster": "lab", "providers": [{"aws": {"regions": ["us-east-1"]}}]}))

        def plan():
            done = w.run("autoscale", "plan", "-t", "kube", "--settings", "autoscale.yaml", "--json", env={**server.env, "KUBECONFIG": str(config)})
            assert done.rc in (0, 10), done
            return json.loads(done.out)["plan"]
        cluster.add_pod("big", cpu="3800m")
        assert [(a["do"], a["to"]) for a in plan()["actions"]] == [("grow", 1)]
        group.desired = 1
        server.settle(group)
        cluster.add_node("a", group.live()[0])
        for _ in range(2):
            made = plan()
            assert not made["actions"], made
            assert ["3770m cpu, not 3800m: " in r["text"] for n in made["not_helped"] for r in n["reasons"]] == [True], made
            # The machine has gone again.
            cluster.list(NODES)[0]["spec"]["providerID"], group.desired, group.instances = "elsewhere", 0, {}


def test_settings_that_are_none(w):
    path = Path(w.dlrun).parent / "tests/real/aws_tool"
    if not path.exists():
        raise Skip("aws_tool is not built")
    for regions, env, want in ((["us east"], {}, "not an AWS region"), (["a", "a"], {}, "twice"),
                               (["us-east-1"], {"AWS_ENDPOINT_URL": "http://aws.example"}, "neither https nor of this machine")):
        done = w.command([path, "1", *regions], env=env)
        assert done.rc == 1 and want in done.err and "[autoscale.settings]" in done.err, done


if __name__ == "__main__":
    main()
