// CPU feature detection: what CPUID reports and the operating system allows.
#pragma once

// Returns what this machine lacks for the instruction set of that name, or null. For AMX it asks
// the system for permission to use tiles, which then holds for the whole process.
const char* missing_for(const char* isa_name);
