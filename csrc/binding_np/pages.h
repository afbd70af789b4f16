/* SPDX-License-Identifier: MIT */
#ifndef OSW_BINDING_NP_PAGES_H
#define OSW_BINDING_NP_PAGES_H

#include <stddef.h>

/* Ask the system for pages of 2 MiB where such pages lie in these bytes as a whole. It may say no.
 */
void osw_huge_pages(void *memory, size_t bytes);

#endif
