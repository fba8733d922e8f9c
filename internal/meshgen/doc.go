// Package meshgen makes random meshes, and random changes of them, for tests.
//
// It knows no kind by name. Which kinds there are, and which of their fields this
// build implements, it reads where the product has them: package manifest and its
// schemas. An object is made by walking the message of its kind, written as a
// document, and read by [manifest.Decode], whose faults say what to write
// otherwise; so a mesh holds nothing that a server would refuse. What no manifest
// can write (the services of a catalog, reports of health) is filled by reflection
// over the structs of package mesh. A kind or a field that is added tomorrow is in
// the meshes of tomorrow.
//
// Values are few, so that objects meet: a handful of hosts, namespaces, labels and
// addresses. A [World] is a function of its seed alone. [Coverage] counts which
// fields were set and changed, so that a test can refuse a generator that leaves
// something out.
package meshgen
