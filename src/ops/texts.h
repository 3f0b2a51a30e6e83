/* Texts that are built in, written for this project: prose, code, figures, dialogue and other
 * languages, some hundred tokens each. The second is not the first's continuation: what was
 * calibrated on one is judged on the other. */
#ifndef SLUICE_OPS_TEXTS_H
#define SLUICE_OPS_TEXTS_H

extern const char *const text_calibration;
extern const char *const text_report;

#endif
