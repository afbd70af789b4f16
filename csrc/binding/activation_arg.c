/* SPDX-License-Identifier: MIT */
#include "binding/activation_arg.h"

#include "binding/number_arg.h"

#include <string.h>

/* Parameters that are not given have the values of torch's functions. relu6 has no parameters. */
static const struct {
    const char *name;
    int parameters;
    osw_activation activation;
} known[] = {
    {"relu", 0, {.kind = OSW_RELU}},
    {"silu", 0, {.kind = OSW_SILU}},
    {"relu6", 0, {.kind = OSW_HARDTANH, .a = 0, .b = 6}},
    {"hardswish", 0, {.kind = OSW_HARDSWISH}},
    {"leaky_relu", 1, {.kind = OSW_LEAKY_RELU, .a = 0.01, .b = 0}},
    {"hardtanh", 2, {.kind = OSW_HARDTANH, .a = -1, .b = 1}},
    {"hardsigmoid", 0, {.kind = OSW_HARDSIGMOID}},
    {"sigmoid", 0, {.kind = OSW_SIGMOID}},
    {"elu", 1, {.kind = OSW_ELU, .a = 1, .b = 0}},
    {"gelu", 0, {.kind = OSW_GELU}},
    {"gelu_tanh", 0, {.kind = OSW_GELU_TANH}},
    {"mish", 0, {.kind = OSW_MISH}},
    {"softplus", 2, {.kind = OSW_SOFTPLUS, .a = 1, .b = 20}},
};

enum { KNOWN = sizeof known / sizeof known[0] };

/* The `count` numbers of "1.0, 2.0)" and nothing after them; false for another text. */
static bool read_numbers(const char *text, int count, double *numbers)
{
    for (int i = 0; i < count; i++) {
        char *end;
        numbers[i] = PyOS_string_to_double(text, &end, NULL);
        if (PyErr_Occurred())
            return false;
        text = end + (i + 1 < count && end[0] == ',' && end[1] == ' ' ? 2 : 0);
        if (i + 1 < count && text == end)
            return false;
    }
    return strcmp(text, ")") == 0;
}

/* false if the text is not an activation; then an exception may be set. */
static bool parse(const char *text, osw_activation *activation)
{
    const size_t length = strcspn(text, "(");
    for (int i = 0; i < KNOWN; i++) {
        if (strncmp(text, known[i].name, length) != 0 || known[i].name[length])
            continue;
        *activation = known[i].activation;
        if (!text[length])
            return true;
        double numbers[2] = {activation->a, activation->b};
        if (!known[i].parameters || !read_numbers(text + length + 1, known[i].parameters, numbers))
            return false;
        activation->a = numbers[0];
        activation->b = numbers[1];
        return true;
    }
    return false;
}

int osw_activation_arg(PyObject *argument, const char *function, osw_activation *activation)
{
    *activation = (osw_activation){.kind = OSW_IDENTITY};
    if (argument == Py_None)
        return 0;
    const char *text = PyUnicode_Check(argument) ? PyUnicode_AsUTF8AndSize(argument, NULL) : NULL;
    if (text && parse(text, activation))
        return 0;
    PyErr_Clear();
    return osw_raise(PyExc_ValueError, "%s: unknown activation %R", function, argument);
}
