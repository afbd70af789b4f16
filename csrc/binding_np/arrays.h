/* SPDX-License-Identifier: MIT */
/* What the files of opswap._np share. arrays.c alone includes NumPy's headers. */
#ifndef OSW_BINDING_NP_ARRAYS_H
#define OSW_BINDING_NP_ARRAYS_H

#include <Python.h>

/* Load NumPy; -1 with an ImportError. */
int osw_numpy_start(void);

/* examine(arrays), fill(...) and huge_pages(array), ended by an empty entry. */
extern PyMethodDef osw_array_methods[];

#endif
