"""Pipeline parallelism: schedules as data, checked and simulated before anything is launched."""

from pypm.pipeline.plan import Plan, plan
from pypm.pipeline.schedules import Eager1F1B, GPipe, Interleaved1F1B, InterleavedGPipe, Std1F1B
from pypm.pipeline.simulation import Simulation, StageCost, simulate
from pypm.pipeline.tasks import Kind, Schedule, Task
from pypm.pipeline.zero_bubble import ZBH1, ZBV, DualPipeV

__all__ = [
    "ZBH1",
    "ZBV",
    "DualPipeV",
    "Eager1F1B",
    "GPipe",
    "Interleaved1F1B",
    "InterleavedGPipe",
    "Kind",
    "Plan",
    "Schedule",
    "Simulation",
    "StageCost",
    "Std1F1B",
    "Task",
    "plan",
    "simulate",
]
