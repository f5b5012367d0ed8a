//! What a call would do.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a call would do, and why: `print(plan)`, or `plan.to_dict()`.
#[pyclass(frozen, module = "qkv")]
pub struct Plan(pub qkv::Plan);

#[pymethods]
impl Plan {
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let qkv::Plan { path, simd, threads, tasks, .. } = &self.0;
        format!("Plan(path='{path}', simd='{simd}', threads={threads}, tasks={tasks})")
    }

    /// The path and why, instruction set, threads, tasks, tiles by sort, multiplications and additions, bytes to move and bytes
    /// of buffers.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let plan = &self.0;
        let tiles = PyDict::new(py);
        tiles.set_item("empty", plan.tiles.empty)?;
        tiles.set_item("full", plan.tiles.full)?;
        tiles.set_item("mixed", plan.tiles.mixed)?;
        let dict = PyDict::new(py);
        dict.set_item("path", plan.path.name())?;
        dict.set_item("reason", plan.reason)?;
        dict.set_item("simd", plan.simd.name())?;
        dict.set_item("threads", plan.threads)?;
        dict.set_item("tasks", plan.tasks)?;
        dict.set_item("tiles", tiles)?;
        dict.set_item("flops", plan.flops)?;
        dict.set_item("bytes", plan.bytes)?;
        dict.set_item("scratch_bytes", plan.scratch_bytes)?;
        Ok(dict)
    }
}
