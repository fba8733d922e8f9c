package manifest

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxCredential is the longest name that an agent takes.
const maxCredential = 253

// credentials judges the names of credentials in all fields of an object.
func (u unfitCheck) credentials(m protoreflect.Message, at string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := at + "." + fd.JSONName()
		judge := func(v protoreflect.Value, field string) {
			switch {
			case fd.Message() != nil:
				u.credentials(v.Message(), field)
			case isCredential(fd):
				if why := credentialFault(v.String()); why != "" {
					u.report(field, why)
				}
			}
		}
		switch {
		case fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				judge(v.List().Get(i), field+"["+strconv.Itoa(i)+"]")
			}
		default:
			judge(v, field)
		}
		return true
	})
}

func isCredential(fd protoreflect.FieldDescriptor) bool {
	name := string(fd.Name())
	return fd.Kind() == protoreflect.StringKind && (strings.HasSuffix(name, "credential_name") || strings.HasSuffix(name, "credential_names"))
}

// credentialFault is why no host can have a credential of that name, or empty.
func credentialFault(name string) string {
	name = strings.TrimPrefix(name, "kubernetes://")
	switch {
	case name == "":
		return ""
	case strings.Contains(name, "://"):
		return "the credential " + strconv.Quote(name) + " is not a folder of the host; write the name of one below the agent's --credentials-dir"
	case strings.Contains(name, "/"):
		return "the credential " + strconv.Quote(name) + " names a namespace, and a host's folders have none; write the name alone"
	case len(name) > maxCredential, strings.HasPrefix(name, "."), strings.Contains(name, ".."),
		strings.ContainsFunc(name, func(r rune) bool {
			letter, digit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z', r >= '0' && r <= '9'
			return !letter && !digit && !strings.ContainsRune("-._", r)
		}):
		return "no folder of a host can have the name " + strconv.Quote(name) + "; use letters, digits and the characters - _ and . in at most " + strconv.Itoa(maxCredential)
	}
	return ""
}
