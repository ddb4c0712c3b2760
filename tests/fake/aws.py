# SPDX-License-Identifier: Apache-2.0
"""Amazon EC2 Auto Scaling as far as an autoscaler uses it, with what moto does not do: launches that fail or are slow.

Names and forms are those of the API references of both services. Signatures are not checked.
"""

import datetime
import re
import urllib.parse
from xml.sax.saxutils import escape

from scripted import Answer, ScriptedServer

# vCPUs, MiB, GPUs
TYPES = {"g5.xlarge": (4, 16384, 1), "p4d.24xlarge": (96, 1179648, 8), "m5.xlarge": (4, 16384, 0)}
NO_CAPACITY = "We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a)."


def xml(value):
    """Dicts, lists of ("member" or "item", value) pairs, and texts."""
    if isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else value
        return "".join(f"<{k}>{xml(v)}</{k}>" for k, v in pairs)
    return escape(str(value))


def members(values):
    return [("member", v) for v in values]


def items(values):
    return [("item", v) for v in values]


def time_text(at):
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class Group:
    """`room`: so many launches succeed, then they fail with `refusal`; None: all succeed. `slow`: instances stay Pending. `more`: members of its
    description; `policy`: whether it has one that is enabled, or none."""

    def __init__(self, name, cluster="lab", size=(0, 0, 10), type="g5.xlarge", tags=()):
        self.name, self.type = name, type
        self.min, self.desired, self.max = size
        self.tags = {"dlrun/cluster": cluster, **dict(tags)}
        self.instances, self.activities = {}, []
        self.room, self.refusal, self.slow, self.zones = None, NO_CAPACITY, False, ["us-east-1a", "us-east-1b"]
        self.suspended, self.more, self.policy = ["AZRebalance"], {"NewInstancesProtectedFromScaleIn": "true"}, None

    def live(self):
        return [i for i, state in self.instances.items() if state != "Terminating"]


class Aws(ScriptedServer):
    """`groups`: by region and name. `types`: where they differ from TYPES, by region and name (None: not there). `page`: groups in one response.
    `filters`: whether it heeds them."""

    def __init__(self, *regions, page=100):
        self.groups = {region: {} for region in regions}
        self.types = {region: {} for region in regions}
        self.filters = True
        self.launched, self.tokens, self.page, self.count_launches = {}, {}, page, 0
        super().__init__()
        self.env = {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "AKIAFAKE", "AWS_SECRET_ACCESS_KEY": "canary-secret",
                    "AWS_EC2_METADATA_DISABLED": "true"}

    def add(self, region, group):
        self.groups[region][group.name] = group
        self.settle(group)
        return group

    def now(self):
        return datetime.datetime.now(datetime.timezone.utc)

    def settle(self, group):
        """What the service does after a change of the size."""
        while len(group.live()) < group.desired:
            activity = {"AutoScalingGroupName": group.name, "Description": "Launching a new EC2 instance.", "StartTime": time_text(self.now()),
                        "StatusCode": "Successful", "StatusMessage": ""}
            group.activities.insert(0, activity)
            if group.room == 0:
                activity.update(StatusCode="Failed", StatusMessage=f"{group.refusal} Launching EC2 instance failed.")
                return
            self.launch(group)

    def launch(self, group):
        self.count_launches += 1
        group.room = None if group.room is None else group.room - 1
        instance = f"i-{self.count_launches:08x}"
        group.instances[instance] = "Pending" if group.slow else "InService"
        self.launched[instance] = self.now()
        return instance

    def form(self, request):
        return dict(urllib.parse.parse_qsl(request.body.decode()))

    def region(self, request):
        return re.search(r"Credential=[^/]+/\d+/([^/]+)/", request.authorization or "").group(1)

    def action(self, *names):
        """For rules: requests of these actions."""
        return lambda request: self.form(request).get("Action") in names

    def handle(self, request):
        form = self.form(request)
        with self.lock:
            try:
                body = getattr(self, form["Action"])(self.groups[self.region(request)], form)
            except KeyError as error:
                return self.refuse("ValidationError", f"no {error}")
            except ValueError as error:
                return self.refuse("ValidationError", str(error))
        date = self.now().strftime("%a, %d %b %Y %H:%M:%S GMT")
        return Answer(200, {"Date": date}, f"<{form['Action']}Response>{xml(body)}</{form['Action']}Response>")

    def refuse(self, code, message="no", status=400):
        return Answer(status, body=f"<ErrorResponse><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></ErrorResponse>")

    # --- Auto Scaling

    def DescribeAutoScalingGroups(self, groups, form):
        name, tag = form.get("AutoScalingGroupNames.member.1"), form.get("Filters.member.1.Name", "")[4:] if self.filters else ""
        found = [g for g in groups.values() if (not name or g.name == name) and (not tag or g.tags.get(tag) == form["Filters.member.1.Values.member.1"])]
        first = int(form.get("NextToken", "0"))
        result = {"AutoScalingGroups": members(self.group(g) for g in found[first:first + self.page])}
        if len(found) > first + self.page:
            result["NextToken"] = first + self.page
        return {"DescribeAutoScalingGroupsResult": result}

    def group(self, g):
        return {"AutoScalingGroupName": g.name, "MinSize": g.min, "MaxSize": g.max, "DesiredCapacity": g.desired,
                "AvailabilityZones": members(g.zones),
                "SuspendedProcesses": members({"ProcessName": p} for p in g.suspended), "LaunchTemplate": {"LaunchTemplateId": f"lt-{g.type}", "Version": "$Latest"},
                "Instances": members({"InstanceId": i, "InstanceType": g.type, "LifecycleState": state} for i, state in g.instances.items()),
                "Tags": members({"Key": k, "Value": v} for k, v in g.tags.items()), **g.more}

    def DescribePolicies(self, groups, form):
        known = [g for g in groups.values() if g.policy is not None]
        return {"DescribePoliciesResult": {"ScalingPolicies": members(
            {"AutoScalingGroupName": g.name, "PolicyName": "p", "Enabled": str(g.policy).lower()} for g in known)}}

    def SetDesiredCapacity(self, groups, form):
        group, desired = groups[form["AutoScalingGroupName"]], int(form["DesiredCapacity"])
        if not group.min <= desired <= group.max:
            raise ValueError(f"New SetDesiredCapacity value {desired} is out of range.")
        group.desired = desired
        for instance in group.live()[desired:]:
            group.instances[instance] = "Terminating"
        self.settle(group)
        return {}

    def LaunchInstances(self, groups, form):
        group, wanted, token = groups[form["AutoScalingGroupName"]], int(form["RequestedCapacity"]), form["ClientToken"]
        if token not in self.tokens:
            if wanted > 100 or len(group.zones) > 1 or group.desired + wanted > group.max:
                raise ValueError("Not possible.")
            made = [self.launch(group) for _ in range(wanted if group.room is None else min(wanted, group.room))]
            group.desired += len(made)
            error = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": group.refusal}
            self.tokens[token] = wanted, {"Instances": members([{"InstanceType": group.type, "InstanceIds": members(made)}]),
                                          "Errors": members([error] if len(made) < wanted else [])}
        if self.tokens[token][0] != wanted:
            raise ValueError("IdempotentParameterMismatch")
        return {"LaunchInstancesResult": self.tokens[token][1]}

    def TerminateInstanceInAutoScalingGroup(self, groups, form):
        group = next((g for g in groups.values() if form["InstanceId"] in g.instances), None)
        if not group:
            raise ValueError("Instance Id not found")
        if group.instances[form["InstanceId"]].startswith("Warmed"):
            raise ValueError("It is in a warm pool")
        if form["ShouldDecrementDesiredCapacity"] == "true":
            if group.desired == group.min:
                raise ValueError("Currently, desiredSize equals minSize. Terminating instance without replacement will violate group's min size constraint.")
            group.desired -= 1
        group.instances[form["InstanceId"]] = "Terminating"
        self.settle(group)
        return {"TerminateInstanceInAutoScalingGroupResult": {"Activity": {"StatusCode": "InProgress"}}}

    def DescribeScalingActivities(self, groups, form):
        return {"DescribeScalingActivitiesResult": {"Activities": members(groups[form["AutoScalingGroupName"]].activities)}}

    # --- EC2

    def values(self, form):
        return [v for k, v in form.items() if k.startswith("Filter.1.Value.")]

    def DescribeLaunchTemplateVersions(self, groups, form):
        return {"launchTemplateVersionSet": items([{"launchTemplateData": {"instanceType": form["LaunchTemplateId"][3:]}}])}

    def DescribeInstanceTypes(self, groups, form):
        known = TYPES | next(self.types[region] for region in self.groups if self.groups[region] is groups)
        return {"instanceTypeSet": items({
            "instanceType": name, "processorInfo": {"supportedArchitectures": items(["x86_64"])}, "vCpuInfo": {"defaultVCpus": known[name][0]},
            "memoryInfo": {"sizeInMiB": known[name][1]}, "gpuInfo": {"gpus": items([{"manufacturer": "NVIDIA", "count": known[name][2]}])},
        } for name in self.values(form) if known.get(name))}

    def DescribeInstances(self, groups, form):
        known = [i for i in self.values(form) if i in self.launched]
        return {"reservationSet": items([{"instancesSet": items({"instanceId": i, "launchTime": time_text(self.launched[i])} for i in known)}])}
