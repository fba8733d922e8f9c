package mapping

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/codes"
)

// Code names a sort of note. Codes are stable and never used again for something
// else.
type Code string

// The codes of this package.
const (
	// CodeName: a service's name is no name in the mesh.
	CodeName Code = codes.RegistrationName
	// CodeHost: a template gives a service no host.
	CodeHost Code = codes.RegistrationHost
	// CodeIdentity: a service can be given no identity.
	CodeIdentity Code = codes.RegistrationIdentity
	// CodeDisagrees: an instance says that it is somebody else.
	CodeDisagrees Code = codes.RegistrationDisagrees
	// CodeAddress: an instance has an address that no Envoy may be led to.
	CodeAddress Code = codes.RegistrationAddress
	// CodePort: an instance has no port.
	CodePort Code = codes.RegistrationPort
	// CodePorts: instances have several ports.
	CodePorts Code = codes.RegistrationPorts
	// CodeProtocol: a protocol is unknown, or instances disagree on it.
	CodeProtocol Code = codes.RegistrationProtocol
	// CodeLabels: metadata or tags that make no labels.
	CodeLabels Code = codes.RegistrationLabels
	// CodeDuplicate: two registrations are of one address and port.
	CodeDuplicate Code = codes.RegistrationTwice
	// CodeVirtual: a virtual address that a registration chose.
	CodeVirtual Code = codes.RegistrationVirtual
	// CodeForeign: a registration that is not of this service.
	CodeForeign Code = codes.RegistrationForeign
	// CodeValue: a weight, locality or mark that is not usable.
	CodeValue Code = codes.RegistrationValue
	// CodeExternal: only some of the instances are external.
	CodeExternal Code = codes.RegistrationExternal
	// CodeOpaque: connections to a service have nothing to tell it by.
	CodeOpaque Code = codes.RegistrationOpaque
)

// Severity says what a note means for traffic.
type Severity string

// The severities.
const (
	// Warning: something is left out.
	Warning Severity = "warning"
	// Info: a choice was made, or a detail is left out.
	Info Severity = "info"
)

// Note says what was left out or chosen, and why. Its texts are bounded and fit
// for a log.
type Note struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	// Service is the service as Consul names it.
	Service string `json:"service"`
	// Instance is NODE/ID, or empty where the note is on the whole service.
	Instance string `json:"instance,omitempty"`
	Message  string `json:"message"`
}

const (
	maxNotes = 20  // of one service
	maxText  = 128 // of a registration, in bytes
)

// sanitize quotes a text of a registration for a note, and bounds it.
func sanitize(s string) string { return fmt.Sprintf("%q", safetext.Sanitize(s, maxText)) }

// notes collects what is to be said of one service.
type notes struct {
	about string // the service, as notes show it
	list  []Note
}

func (n *notes) warn(code Code, instance, format string, args ...any) {
	n.list = append(n.list, Note{code, Warning, n.about, instance, fmt.Sprintf(format, args...)})
}

func (n *notes) info(code Code, instance, format string, args ...any) {
	n.list = append(n.list, Note{code, Info, n.about, instance, fmt.Sprintf(format, args...)})
}

// sorted returns the notes in an order that does not depend on that of the
// entries; of very many, some and the number of the others.
func (n *notes) sorted() []Note {
	slices.SortFunc(n.list, func(a, b Note) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Message, b.Message))
	})
	if more := len(n.list) - maxNotes; more > 0 {
		last := n.list[maxNotes]
		n.list = slices.Clip(append(n.list[:maxNotes:maxNotes], Note{
			last.Code, last.Severity, n.about, "", fmt.Sprintf("%d notes more, on %s and others", more, last.Instance),
		}))
	}
	return n.list
}
