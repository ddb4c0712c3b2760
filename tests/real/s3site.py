# SPDX-License-Identifier: Apache-2.0
"""Servers of S3 that check signatures, as processes of the tests: moto, of the package index, and `rclone serve s3`."""

import contextlib
import json
import os
import pickle
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

from gotools import go_tool
from harness import Missing, wait_for
from pypi import made_once
from registries import free_port, listens

PROGRAMS = Path(__file__).resolve().parents[2] / "lib/kube/job"
# Any key will do until the server is told to check.
ANY = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=x"
# Moto checks the signature of the address as it has decoded it; ours is checked as it was sent.
LAUNCH = """import sys
import flask
import moto.iam.access_control as access
from moto.server import main
make = access.IAMRequestBase._create_aws_request
def as_sent(self):
    self._path = flask.request.environ["RAW_URI"]
    return make(self)
access.IAMRequestBase._create_aws_request = as_sent
main(sys.argv[1:])
"""


def moto():
    """The Python that has it, and boto3."""
    return made_once("moto-5.2.1", "moto[s3,server]==5.2.1")


class S3Server:
    """`env`: what a client needs; `bucket` is there, and `secret` is what must be seen nowhere."""

    bucket = "lab-results"

    def __init__(self, directory, host="127.0.0.1"):
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.port = probe.getsockname()[1]
        self.address, self.log = f"{host}:{self.port}", directory / f"moto-{self.port}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([moto(), "-c", LAUNCH, "-H", host, "-p", str(self.port)],
                                            stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_for(self.responds, "moto", 60)
            self.iam(Action="CreateUser", UserName="u")
            policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
            self.iam(Action="PutUserPolicy", UserName="u", PolicyName="p", PolicyDocument=json.dumps(policy))
            keys = dict(re.findall(r"<(AccessKeyId|SecretAccessKey)>([^<]*)", self.iam(Action="CreateAccessKey", UserName="u")))
            self.ask(f"/{self.bucket}", "PUT", {"Authorization": ANY.format("s3")})
            self.ask("/moto-api/reset-auth", "POST", {"Content-Type": "text/plain"}, b"0")
        except BaseException:
            self.close()
            raise
        self.secret = keys["SecretAccessKey"]
        self.endpoint = f"http://{self.address}"
        self.env = {"AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_ACCESS_KEY_ID": keys["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": self.secret,
                    "AWS_EC2_METADATA_DISABLED": "true"}

    def ask(self, path, method="GET", headers=None, data=None):
        request = urllib.request.Request(f"http://{self.address}{path}", data, headers or {}, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def signed(self, method, key, params):
        """What the bucket responds to a client."""
        text = (PROGRAMS / "s3.py").read_text() + "sys.stdout.buffer.write(Bucket(sys.argv[1]).call(*json.loads(sys.argv[2]))[1])\n"
        done = subprocess.run(["python3", "-ESc", text, f"s3://{self.bucket}", json.dumps([method, key, params])], env={**os.environ, **self.env},
                              capture_output=True, check=True)
        return done.stdout.decode()

    def iam(self, **form):
        return self.ask("/", "POST", {"Authorization": ANY.format("iam")}, urllib.parse.urlencode({"Version": "2010-05-08", **form}).encode())

    def responds(self):
        if self.process.poll() is not None:
            raise Missing(f"moto: {self.log.read_text()[-600:]}")
        with contextlib.suppress(OSError):
            return self.ask("/moto-api/") is not None

    def close(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class RcloneServer(S3Server):
    """Buckets are directories below `top`, objects files in them."""

    def __init__(self, directory, pair=None):
        """pair: files of a certificate and its key: https."""
        self.port, self.top, self.secret = free_port(), directory / "rclone-s3", "rclone-canary-secret"
        self.address, self.log = f"127.0.0.1:{self.port}", directory / f"rclone-{self.port}.log"
        self.endpoint = f"http{'s' if pair else ''}://{self.address}"
        (self.top / self.bucket).mkdir(parents=True)
        self.env = {"AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_ACCESS_KEY_ID": "RCLONEKEY", "AWS_SECRET_ACCESS_KEY": self.secret,
                    "AWS_EC2_METADATA_DISABLED": "true"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([go_tool("rclone"), "serve", "s3", "--config", "/dev/null", "--addr", self.address,
                                             *(("--cert", pair[0], "--key", pair[1]) if pair else ()),
                                             "--auth-key", f"RCLONEKEY,{self.secret}", self.top], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(lambda: self.process.poll() is not None or listens(self.port), "rclone", 60)
        if self.process.poll() is not None:
            raise Missing(f"rclone: {self.log.read_text()[-600:]}")


FILL = """
files, bucket = __import__("pickle").load(sys.stdin.buffer), Bucket(sys.argv[1], keeps=True)
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda name: bucket.call("PUT", bucket.prefix + "/" + name, data=files[name]), files))
"""


def fill(w, s3, prefix, files):
    text = (PROGRAMS / "s3.py").read_text() + FILL
    subprocess.run(["python3", "-ESc", text, f"s3://{s3.bucket}/{prefix}"], env={**w.env, **s3.env}, input=pickle.dumps(files), check=True)
