# SPDX-License-Identifier: Apache-2.0
"""A token server of the registry protocol: GET and OAuth2 POST, with lives of seconds.

https://distribution.github.io/distribution/spec/auth/token/ and …/oauth/
"""

import base64
import binascii
import dataclasses
import json
import secrets
import threading
import time
import urllib.parse

from scripted import Answer, ScriptedServer


def basic_user(header, users):
    """The user whose name and password a Basic field holds, or None."""
    kind, _, value = (header or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return name if users.get(name) == password else None


@dataclasses.dataclass
class Token:
    """A token given out: to whom (None: nobody), for what ({repository: {actions}}), until when."""

    text: str
    user: str | None
    scopes: dict
    expires: float


@dataclasses.dataclass
class Grant:
    """A request that got a token: how ("GET" or the grant type), the user, the scopes as asked."""

    how: str
    user: str | None
    scopes: list
    token: Token
    time: float


def parse_scope(text):
    """("REPOSITORY", {actions}) of "repository:NAME:pull,push"; None for anything else."""
    kind, _, rest = text.partition(":")
    name, _, actions = rest.rpartition(":")
    return (name, set(actions.split(","))) if kind == "repository" and name else None


class TokenServer(ScriptedServer):
    """Gives out tokens at URL/token and knows later what each is good for.

    users        {name: password}.
    anonymous    what requests without credentials may do: set of actions, or None: 401.
    allow        function (user, repository, action) -> bool; default: everybody everything.
    life         seconds that a token is good; expires_in: the number said in the answer (default:
                 life in whole seconds; None: not said, which means 60).
    field        "token", "access_token" or "both".
    post         True, or the status (404, 405, …) that every POST gets.
    refresh      {refresh token: user}, taken by POST; with offline_token=true a GET adds one.
    only_first   only the first scope of a request is honoured.
    all_or_none  a request for anything that is not allowed gets 403 instead of a token for the rest.
    wait         seconds before each answer.
    grants       every Grant so far. More: ScriptedServer.
    """

    def __init__(self, users=None, anonymous=None, allow=None, life=300, expires_in=..., field="token", post=True,
                 refresh=None, only_first=False, all_or_none=False, wait=0.0, **server):
        self.users, self.anonymous = dict(users or {}), anonymous
        self.allow = allow or (lambda user, repository, action: True)
        self.life, self.expires_in, self.field, self.post = life, expires_in, field, post
        self.refresh, self.only_first, self.wait_s = dict(refresh or {}), only_first, wait
        self.all_or_none = all_or_none
        self.grants = []
        self._tokens = {}
        self._tokens_lock = threading.Lock()
        super().__init__(**server)
        self.realm = self.url + "/token"

    # --- for registries and tests

    def lookup(self, header):
        """The Token of a Bearer field while it is good, or None."""
        kind, _, text = (header or "").partition(" ")
        with self._tokens_lock:
            token = self._tokens.get(text) if kind.lower() == "bearer" else None
        return token if token and time.monotonic() < token.expires else None

    def expire_all(self):
        """Every token given out so far is worth nothing from now on."""
        with self._tokens_lock:
            for token in self._tokens.values():
                token.expires = 0

    def issue(self, user, scopes, life=None):
        """A Token made without a request; scopes: {repository: actions}."""
        scopes = {name: set(actions) for name, actions in scopes.items()}
        token = Token(secrets.token_urlsafe(32), user, scopes, time.monotonic() + (self.life if life is None else life))
        with self._tokens_lock:
            self._tokens[token.text] = token
        return token

    # --- answering

    def handle(self, request):
        if request.path != "/token":
            return Answer(404)
        answer = self._get(request) if request.method == "GET" else self._post(request)
        answer.delay = self.wait_s
        return answer

    def _get(self, request):
        user = basic_user(request.authorization, self.users)
        if request.authorization and not user:
            return refusal("UNAUTHORIZED", "authentication required")
        if not user and self.anonymous is None:
            return refusal("UNAUTHORIZED", "authentication required")
        scopes = [word for value in request.query.get("scope", []) for word in value.split()]
        offline = user and request.arg("offline_token") == "true"
        return self._grant("GET", user, scopes, self._new_refresh(user) if offline else None)

    def _post(self, request):
        if request.method != "POST":
            return Answer(405)
        if self.post is not True:
            return Answer(self.post, {"Content-Type": "text/plain"}, b"404 page not found\n")
        form = {k: v[0] for k, v in urllib.parse.parse_qs((request.body or b"").decode("latin-1")).items()}
        how, user = form.get("grant_type"), None
        if not form.get("service") or not form.get("client_id"):
            return oauth_error("invalid_request")
        if how == "refresh_token":
            user = self.refresh.get(form.get("refresh_token"))
        elif how == "password" and self.users.get(form.get("username")) == form.get("password", ""):
            user = form["username"]
        if not user:
            return oauth_error("invalid_grant" if how in ("refresh_token", "password") else "unsupported_grant_type")
        known = form.get("refresh_token")
        if not known and form.get("access_type") == "offline":
            known = self._new_refresh(user)
        return self._grant(how, user, form.get("scope", "").split(), known)

    def _new_refresh(self, user):
        text = secrets.token_urlsafe(32)
        self.refresh[text] = user
        return text

    def _grant(self, how, user, scopes, refresh):
        granted = {}
        for text in scopes[:1] if self.only_first else scopes:
            scope = parse_scope(text)
            if scope:
                allowed = {action for action in scope[1] if self._may(user, scope[0], action)}
                if self.all_or_none and allowed != scope[1]:
                    return refusal("DENIED", "requested access to the resource is denied", 403)
                granted.setdefault(scope[0], set()).update(allowed)
        token = self.issue(user, granted)
        with self.lock:
            self.grants.append(Grant(how, user, scopes, token, time.monotonic()))
        body = {name: token.text for name in ("token", "access_token") if self.field in (name, "both")}
        if self.expires_in is not None:
            body["expires_in"] = max(1, int(self.life)) if self.expires_in is ... else self.expires_in
        if refresh:
            body["refresh_token"] = refresh
        return Answer(200, {"Content-Type": "application/json", "Cache-Control": "no-store"}, json.dumps(body))

    def _may(self, user, repository, action):
        return self.allow(user, repository, action) if user else action in self.anonymous


def refusal(code, message, status=401):
    body = json.dumps({"errors": [{"code": code, "message": message, "detail": None}]})
    return Answer(status, {"Content-Type": "application/json"}, body)


def oauth_error(code):
    return Answer(400, {"Content-Type": "application/json"}, json.dumps({"error": code}))
