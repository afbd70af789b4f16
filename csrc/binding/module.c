/* SPDX-License-Identifier: MIT */
#include "binding/binding.h"

static int execute(PyObject *module)
{
    PyMethodDef *const tables[] = {
        osw_isa_methods,          osw_tensor_methods,        osw_memory_methods,
        osw_channels_methods,     osw_shuffle_methods,       osw_norm_methods,
        osw_linear_methods,       osw_dropout_methods,       osw_max_pool_methods,
        osw_avg_pool_methods,     osw_adaptive_pool_methods, osw_pointwise_methods,
        osw_depthwise_methods,    osw_conv_methods,          osw_chain_methods,
        osw_group_norm_methods,   osw_modules_methods,       osw_layer_norm_methods,
        osw_chain_folded_methods, osw_call_methods,          osw_kinds_methods,
        osw_entries_methods,      osw_norm_pool_methods,     osw_mean_square_methods};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (PyModule_AddFunctions(module, tables[i]) != 0)
            return -1;
    return osw_isa_start();
}

/* CPython keeps the function in a void pointer, a conversion that ISO C leaves out. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, __extension__(void *) execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "opswap._core",
    .m_doc = "Kernels of opswap; called by opswap.ops only.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
