// Prints the protobuf numbers of every field of the built-in kinds, one line each, as the types' own tags have them.
package main

import (
	"fmt"
	"reflect"
	"sort"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// lines by definition and field, and the definitions already walked.
type facts struct {
	lines []string
	seen  map[reflect.Type]bool
}

// form names what a field's Go type has on the wire when its JSON type does not tell.
func form(field reflect.Type) string {
	switch field.Name() {
	case "JSONSchemaPropsOrArray":
		return ":or-array"
	case "JSONSchemaPropsOrBool":
		return ":or-bool"
	case "JSONSchemaPropsOrStringArray":
		return ":or-strings"
	}
	if _, wrapped := field.MethodByName("Marshal"); wrapped && field.Kind() == reflect.Slice {
		return ":items"
	}
	return ""
}

// leaf is the type of single values: of items, of a map's values, of what a pointer points to.
func leaf(field reflect.Type) reflect.Type {
	for form(field) == "" && field.Name() != "FieldsV1" {
		switch field.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			field = field.Elem()
		default:
			return field
		}
	}
	return field
}

func number(field reflect.StructField) string {
	parts := strings.Split(field.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return ""
	}
	return parts[1]
}

func (f *facts) fields(definition string, of reflect.Type, prefix string) {
	for index := range of.NumField() {
		field := of.Field(index)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		tag := number(field)
		if tag == "" || name == "-" {
			continue
		}
		if name == "" && field.Anonymous {
			f.fields(definition, leaf(field.Type), prefix+tag+".")
			continue
		}
		single := leaf(field.Type)
		mark := ""
		if field.Type.Kind() == reflect.Pointer || !strings.Contains(options, "omitempty") {
			mark = "?"
		}
		f.lines = append(f.lines, fmt.Sprintf("%s %s #%s%s%s%s", definition, name, prefix, tag, mark, form(single)))
		f.walk(single)
	}
}

func (f *facts) walk(of reflect.Type) {
	if of.Kind() != reflect.Struct || f.seen[of] {
		return
	}
	f.seen[of] = true
	path := strings.ReplaceAll(strings.TrimPrefix(of.PkgPath(), "k8s.io/"), "/", ".")
	f.fields(path+"."+of.Name(), of, "")
}

func main() {
	f := &facts{seen: map[reflect.Type]bool{}}
	all := []*runtime.Scheme{scheme.Scheme, runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{apiextensions.AddToScheme, apiregistration.AddToScheme, meta.AddMetaToScheme} {
		if err := add(all[1]); err != nil {
			panic(err)
		}
	}
	for _, one := range all {
		for _, of := range one.AllKnownTypes() {
			f.walk(of)
		}
	}
	sort.Strings(f.lines)
	fmt.Println(strings.Join(f.lines, "\n"))
}
