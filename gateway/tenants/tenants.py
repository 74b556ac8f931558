"""The tenants of a gateway: finds out whose a request is, and keeps what each tenant uses.

Both front doors ask here before they read a request's body (gateway/dialects/guard.py, gateway/grpc/guard.py). Limits
hold for one gateway process: each counts what it serves itself."""

import logging
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from pathlib import Path

from gateway.tenants.admission import TenantAdmission
from gateway.tenants.credentials import CallerCredentials
from gateway.tenants.keys import KeyFile
from gateway.tenants.limits import TenantUse
from gateway.tenants.rows import Tenant
from mesh.config.config_checks import ConfigError
from mesh.errors import Forbidden, Unauthenticated

log = logging.getLogger("baton.tenants")

MOST_SHOWN = 100  # tenants that metrics name
OTHERS = "_others"  # all further ones in metrics, and those that are gone; no tenant can have this name


class Work(Enum):
    GENERATES = "generates"  # the request spends tokens, and counts among those that run
    COMPUTES = "computes"  # it counts among those that run, and spends none: tokenizing
    LOOKS = "looks"  # it reads a page: no limit applies
    OPERATES = "operates"  # it reads a page that shows operations, which only operators may


class Tenants:
    def __init__(self, keys: KeyFile, clock: Callable[[], float]) -> None:
        """`clock`: the event loop's."""
        self._keys, self._clock = keys, clock
        self._table = keys.table  # that the uses below belong to
        self._uses = dict[str, TenantUse]()
        self._gone = list[TenantUse]()  # uses of tenants that the file no longer has

    async def watch(self) -> None:
        await self._keys.watch()

    @property
    def takes_certificates(self) -> bool:
        return self._keys.table.takes_certificates

    def enter(self, credentials: CallerCredentials, work: Work) -> TenantAdmission:
        """Admit a request, or raise Unauthenticated, Forbidden or RateLimited. Close the admission in the end."""
        tenant = self._tenant_of(credentials)
        if work is Work.OPERATES and not tenant.operator:
            raise Forbidden(f"the key of {tenant.name} is no operator's, and this page shows the operation of the mesh")
        admission = TenantAdmission(self._use_of(tenant), self._clock)
        if work in (Work.GENERATES, Work.COMPUTES):
            admission.starts(spends=work is Work.GENERATES)
        return admission

    def enter_as(self, name: str, work: Work) -> TenantAdmission:
        """Admit what this gateway computes for a tenant who does not wait for it. Raises like `enter`."""
        tenant = self._keys.table.tenants.get(name)
        if tenant is None:
            raise Unauthenticated(f"the tenant {name} has no key any more")
        admission = TenantAdmission(self._use_of(tenant), self._clock)
        admission.starts(spends=work is Work.GENERATES)
        return admission

    def check(self, credentials: CallerCredentials) -> None:
        """Raise Unauthenticated for a caller that nobody knows."""
        self._tenant_of(credentials)

    def uses(self) -> Iterator[tuple[str, list[TenantUse]]]:
        """Uses by the name under which metrics show them: at most MOST_SHOWN names, and OTHERS."""
        self._adopt()
        shown = list(islice(self._table.tenants.values(), MOST_SHOWN))
        for tenant in shown:
            yield tenant.name, [self._use_of(tenant)]
        names = {tenant.name for tenant in shown}
        rest = [*self._gone, *(use for name, use in self._uses.items() if name not in names)]
        if rest:
            yield OTHERS, rest

    def _tenant_of(self, credentials: CallerCredentials) -> Tenant:
        table = self._keys.table
        if credentials.key is not None:
            tenant = table.by_key(credentials.key)
            if tenant is None:
                raise Unauthenticated("this key is not known here; ask the gateway's operator for one")
            return tenant
        found = table.by_certificate(credentials.certificate)
        if found is None:
            raise Unauthenticated("this gateway wants a key: send the header `Authorization: Bearer KEY`")
        return found

    def _use_of(self, tenant: Tenant) -> TenantUse:
        self._adopt()
        use = self._uses.get(tenant.name)
        if use is None:
            use = self._uses[tenant.name] = TenantUse(tenant, self._clock())
        return use

    def _adopt(self) -> None:
        """Take over the rows of a file that has changed; requests that run keep counting."""
        if self._table is self._keys.table:
            return
        self._table, now = self._keys.table, self._clock()
        for name, use in list(self._uses.items()):
            tenant = self._table.tenants.get(name)
            if tenant is None:
                self._gone.append(self._uses.pop(name))
            elif tenant != use.tenant:
                use.adopt(tenant, now)


def open_tenants(file: Path | None, clock: Callable[[], float]) -> Tenants | None:
    """The tenants of the setting `keys_file`; None: every client is served."""
    if file is None:
        log.info("no keys_file: the gateway serves every client that reaches it")
        return None
    try:
        return Tenants(KeyFile(file), clock)
    except ConfigError as error:
        raise ConfigError(f"gateway.keys_file: {error}") from None
