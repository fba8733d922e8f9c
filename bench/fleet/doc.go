// Command fleet measures what a change costs a control plane that serves
// thousands of proxies: it writes the mesh, runs the server and the fleet as
// processes of their own, makes the changes and reads what the kernel says.
//
// See README.md in the directory above for what to run.
package main
