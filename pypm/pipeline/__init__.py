"""Pipeline parallelism: programs cut into stages, and trained by schedules that were checked."""

from pypm.pipeline.blocks import mark_stage_end
from pypm.pipeline.cutting import Cut, Stage
from pypm.pipeline.drawing import timeline, timeline_svg
from pypm.pipeline.exchange import stage_costs
from pypm.pipeline.launch import launch
from pypm.pipeline.plan import Kind, Plan, Schedule, Task, plan
from pypm.pipeline.running import Pipeline, Result
from pypm.pipeline.schedules import (
    ZBH1,
    ZBV,
    DualPipeV,
    Eager1F1B,
    GPipe,
    Interleaved1F1B,
    InterleavedGPipe,
    Std1F1B,
    schedule,
)
from pypm.pipeline.simulation import Simulation, StageCost, simulate
from pypm.pipeline.stages import measured, stages

__all__ = [
    "ZBH1",
    "ZBV",
    "Cut",
    "DualPipeV",
    "Eager1F1B",
    "GPipe",
    "Interleaved1F1B",
    "InterleavedGPipe",
    "Kind",
    "Pipeline",
    "Plan",
    "Result",
    "Schedule",
    "Simulation",
    "Stage",
    "StageCost",
    "Std1F1B",
    "Task",
    "launch",
    "mark_stage_end",
    "measured",
    "plan",
    "schedule",
    "simulate",
    "stage_costs",
    "stages",
    "timeline",
    "timeline_svg",
]
