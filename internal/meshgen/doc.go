// Package meshgen generates random meshes, and random changes of them, for tests.
//
// It knows no kind by name. It reads the kinds, and the fields of each that this build
// implements, where the product has them: in package manifest and its schemas. It makes an
// object by walking the message of its kind, writes it as a document, and reads it with
// [manifest.Decode]. Faults say what to write otherwise, so a mesh has nothing that a
// server would reject. What no manifest can write (the services of a catalog, reports of
// health) is filled by reflection over the structs of package mesh. A kind or field that is
// added later is included without an edit.
//
// There are few values, so that objects refer to each other: a handful of hosts,
// namespaces, labels and addresses. A [Generator] is a function of its seed. [Coverage]
// counts which fields were set and changed, so that a test can fail if the generator leaves
// something out.
package meshgen
