/* One entry a subcommand; argv[0] is the subcommand's name. Each returns the exit status. */
#ifndef SLUICE_MAIN_MAIN_H
#define SLUICE_MAIN_MAIN_H

int main_serve(int argc, char **argv);
int main_proxy(int argc, char **argv);
int main_launch(int argc, char **argv);
int main_mkmodel(int argc, char **argv);
int main_quantize(int argc, char **argv);
int main_ranktable(int argc, char **argv);
int main_sim(int argc, char **argv);
int main_calibrate(int argc, char **argv);
int main_version(int argc, char **argv);

#endif
