// What this machine can run, by CPUID and what the system lets a process use.
#pragma once

// What the machine lacks for the instruction set of that name, or null. Asks the system for the
// use of AMX tiles where the name says so; the leave then holds for the whole process.
const char* missing_for(const char* isa_name);
