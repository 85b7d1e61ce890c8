"""A kernel in a sandbox: nbgrader talks to it through sockets that lie in the sandbox's own /kernel.

No folder of this machine is shared with it: the kernel makes its sockets in there, and we reach them through the
sandbox's entry in our /proc.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import replace
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Dict, List

from grader import sandbox
from grader.sandbox import End, Limits

CONNECTION = "/tmp/connection.json"  # inside
SOCKETS = "/kernel/socket"


class SandboxProvisioner(LocalProvisioner):
    """Starts and ends the sandbox; what LocalProvisioner prepares stays."""

    end: End | None = None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict:
        manager = self.parent
        secrets = {"key": self.connection_info["key"].decode()}
        self.process = sandbox.start(
            [CONNECTION if word.endswith(manager.connection_file) else word for word in cmd],
            read_only=manager.read_only,
            files={CONNECTION: json.dumps({**self.connection_info, **secrets})},
            folders=["/kernel"],
            limits=replace(Limits(), **manager.limits),
            gpus=manager.gpus,
            stdout=subprocess.DEVNULL,  # cells' output comes through the sockets
        )
        return {**self.connection_info, "ip": str(self.process.path(SOCKETS))}

    async def poll(self) -> int | None:
        if self.process:
            self.end = self.process.poll()
        return self.end.status if self.end else None

    async def wait(self) -> int | None:
        while await self.poll() is None:
            await asyncio.sleep(0.1)
        self.process = None
        return self.end.status

    async def send_signal(self, signum: int) -> None:
        """All that is sent from here means: end. Interrupts go as messages."""
        if self.process:
            self.end = self.process.kill()

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(9)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(15)


class SandboxedKernel(AsyncKernelManager):
    """A kernel manager whose kernels run in a sandbox."""

    limits = Dict(help="of a submission's processes: the fields of grader.sandbox.Limits").tag(config=True)
    read_only = List([str(sandbox.UTILS)], help="files and folders that it sees")
    gpus = Bool(False, help="whether submissions see the machine's GPUs").tag(config=True)

    @property
    def kernel_spec(self) -> KernelSpec:
        spec = super().kernel_spec
        spec.interrupt_mode = "message"  # a signal from here would reach the warden, not the kernel
        return spec

    async def _async_pre_start_kernel(self, **kwargs: Any) -> tuple:
        self.transport, self.ip = "ipc", SOCKETS
        self.provisioner = SandboxProvisioner(kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**kwargs)

    def why_ended(self) -> str:
        """Why the sandbox was ended, in words; "" when the kernel ended by itself."""
        end = self.provisioner.end if self.provisioner else None
        return (end.stopped or "") if end else ""
