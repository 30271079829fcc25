package peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Serves Apache RocketMQ's real client classes over JSON lines.
 *
 * <p>In: {"id": 1, "op": "producer.send", "args": {...}}. Out: {"id": 1, "ok": true, "result": ...},
 * or {"id": 1, "ok": false, "error": {...}}, and at any time {"event": name, "data": {...}}. Each
 * request runs on a thread of its own, so answers come in any order.
 */
public final class Driver {
    /** One operation: arguments in, anything {@link Plain} understands out. */
    interface Op {
        Object run(JSONObject args) throws Exception;
    }

    /** Something with a handle that must be shut down. */
    interface Held {
        Object target();

        void shutdown() throws Exception;
    }

    private static final Map<String, Op> OPS = new TreeMap<>();
    private static final Map<String, Held> HELD = new ConcurrentHashMap<>();
    private static final AtomicInteger COUNTER = new AtomicInteger();
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "op-" + COUNTER.incrementAndGet());
        thread.setDaemon(true);
        return thread;
    });
    private static final PrintStream WIRE =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        Capture.install();
        Hurry.always();
        OPS.put("ping", Driver::ping);
        OPS.put("ops", ignored -> new ArrayList<>(OPS.keySet()));
        OPS.put("shutdown", Driver::shutdown);
        OPS.put("stopAll", ignored -> stopAll());
        OPS.put("exit", ignored -> {
            stopAll();
            new Thread(() -> System.exit(0), "exit").start();
            return null;
        });
        Reflect.register(OPS);
        Producers.register(OPS);
        Load.register(OPS);
        Consumers.register(OPS);
        Replies.register(OPS);
        Retries.register(OPS);
        Admin.register(OPS);
        Codec.register(OPS);
        Filters.register(OPS);
        Shares.register(OPS);
        registerIfThere("peers.Access");
        emit("ready", ping(null));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            THREADS.execute(() -> serve(request));
        }
        // Whoever started us is gone, so there is nobody left to be tidy for.
        Runtime.getRuntime().halt(3);
    }

    /** Of classes that only one line of RocketMQ can compile. */
    private static void registerIfThere(String name) throws Exception {
        Class<?> owner;
        try {
            owner = Class.forName(name);
        } catch (ClassNotFoundException otherLine) {
            return;
        }
        owner.getDeclaredMethod("register", Map.class).invoke(null, OPS);
    }

    private static void serve(JSONObject request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.get("id"));
        try {
            Op op = OPS.get(request.getString("op"));
            if (op == null) {
                throw new IllegalArgumentException("no such op: " + request.getString("op"));
            }
            JSONObject args = request.getJSONObject("args");
            answer.put("result", Plain.of(op.run(args == null ? new JSONObject() : args)));
            answer.put("ok", true);
        } catch (Throwable error) {
            answer.remove("result");
            answer.put("ok", false);
            answer.put("error", describe(error));
        }
        write(answer);
    }

    static void emit(String event, Object data) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("data", Plain.of(data));
        write(line);
    }

    private static void write(Map<String, Object> line) {
        String text = JSON.toJSONString(line, Plain.FEATURES);
        synchronized (WIRE) {
            WIRE.print(text);
            WIRE.print('\n');
            WIRE.flush();
        }
    }

    /** What an exception says of itself, with RocketMQ's response code where it has one. */
    static Map<String, Object> describe(Throwable error) {
        Throwable cause = error;
        while (cause instanceof InvocationTargetException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("class", cause.getClass().getName());
        result.put("message", String.valueOf(cause.getMessage()));
        try {
            result.put("code", cause.getClass().getMethod("getResponseCode").invoke(cause));
        } catch (ReflectiveOperationException none) {
            result.put("code", null);
        }
        StringWriter stack = new StringWriter();
        cause.printStackTrace(new PrintWriter(stack, true));
        result.put("stack", stack.toString());
        return result;
    }

    // Handles.

    static String hold(String kind, Held held) {
        String handle = kind + "-" + COUNTER.incrementAndGet();
        HELD.put(handle, held);
        return handle;
    }

    static Held held(JSONObject args) {
        String handle = args.getString("handle");
        Held held = handle == null ? null : HELD.get(handle);
        if (held == null) {
            throw new IllegalArgumentException("no such handle: " + handle);
        }
        return held;
    }

    static <T> T target(JSONObject args, Class<T> type) {
        return type.cast(held(args).target());
    }

    private static Object shutdown(JSONObject args) throws Exception {
        Held held = held(args);
        HELD.remove(args.getString("handle"));
        held.shutdown();
        return null;
    }

    private static Object stopAll() throws InterruptedException {
        List<String> handles = new ArrayList<>(HELD.keySet());
        CountDownLatch latch = new CountDownLatch(handles.size());
        for (String handle : handles) {
            Held held = HELD.remove(handle);
            THREADS.execute(() -> {
                try {
                    if (held != null) {
                        held.shutdown();
                    }
                } catch (Throwable error) {
                    error.printStackTrace();
                } finally {
                    latch.countDown();
                }
            });
        }
        latch.await();
        return handles;
    }

    private static Object ping(JSONObject ignored) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        int version = org.apache.rocketmq.common.MQVersion.CURRENT_VERSION;
        result.put("version", org.apache.rocketmq.common.MQVersion.getVersionDesc(version));
        result.put("versionNumber", version);
        result.put("java", System.getProperty("java.version"));
        result.put("pid", ProcessHandle.current().pid());
        return result;
    }
}
