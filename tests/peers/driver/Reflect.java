package peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;

/**
 * Calls any public method and sets any bean property by name.
 *
 * <p>Keeps the driver small, and lets one source compile against both 4.9 and 5.x, which keep several
 * enums in different packages.
 */
final class Reflect {
    private Reflect() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("call", args -> {
            Object target = Driver.held(args).target();
            return invoke(target.getClass(), target, args);
        });
        ops.put("static", args -> invoke(Class.forName(args.getString("type")), null, args));
    }

    /** Calls setX(value) for each option x. */
    static void configure(Object bean, JSONObject options) throws Exception {
        if (options == null) {
            return;
        }
        for (Map.Entry<String, Object> option : options.entrySet()) {
            String name = option.getKey();
            String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
            JSONArray values = new JSONArray();
            values.add(option.getValue());
            Method method = find(bean.getClass(), setter, values, null, false);
            method.invoke(bean, convert(values, method));
        }
    }

    private static Object invoke(Class<?> owner, Object target, JSONObject args) throws Exception {
        JSONArray values = args.getJSONArray("args");
        if (values == null) {
            values = new JSONArray();
        }
        Method method = find(owner, args.getString("method"), values, args.getJSONArray("types"), target == null);
        method.setAccessible(true);
        return method.invoke(target, convert(values, method));
    }

    /** The public method of that name whose parameters the values convert to; types settle a tie. */
    private static Method find(
        Class<?> owner, String name, JSONArray values, JSONArray types, boolean isStatic) throws Exception {
        List<Method> methods = new ArrayList<>(Arrays.asList(owner.getMethods()));
        methods.sort(Comparator.comparing(Method::toString));
        for (Method method : methods) {
            boolean fits = method.getName().equals(name)
                && method.getParameterCount() == values.size()
                && (!isStatic || Modifier.isStatic(method.getModifiers()))
                && !method.isBridge()
                && (types == null || hasTypes(method, types));
            if (fits) {
                try {
                    convert(values, method);
                    return method;
                } catch (RuntimeException other) {
                    // Another overload may take these values.
                }
            }
        }
        throw new NoSuchMethodException(owner.getName() + "." + name + " taking " + values.toJSONString());
    }

    private static boolean hasTypes(Method method, JSONArray types) {
        Class<?>[] actual = method.getParameterTypes();
        for (int i = 0; i < actual.length; i++) {
            String wanted = types.getString(i);
            if (!actual[i].getName().equals(wanted) && !actual[i].getSimpleName().equals(wanted)) {
                return false;
            }
        }
        return true;
    }

    private static Object[] convert(JSONArray values, Method method) {
        Type[] types = method.getGenericParameterTypes();
        Object[] result = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
            result[i] = convert(values.get(i), types[i]);
        }
        return result;
    }

    static Object convert(Object value, Type type) {
        if (value == null) {
            if (type instanceof Class && ((Class<?>) type).isPrimitive()) {
                throw new IllegalArgumentException("null for " + type);
            }
            return null;
        } else if (type == Message.class) {
            return Producers.message((JSONObject) value);
        } else if (type == ByteBuffer.class) {
            return ByteBuffer.wrap(Base64.getDecoder().decode((String) value));
        } else if (type == byte[].class) {
            return Base64.getDecoder().decode((String) value);
        } else if (type == String.class) {
            if (!(value instanceof String)) {
                throw new IllegalArgumentException("not a string: " + value);
            }
            return value;
        } else if (isListOfMessages(type)) {
            return Producers.messages((JSONArray) value);
        }
        return JSON.parseObject(JSON.toJSONString(value), type);
    }

    private static boolean isListOfMessages(Type type) {
        return type instanceof ParameterizedType
            && ((ParameterizedType) type).getActualTypeArguments()[0] == Message.class;
    }
}
